"""Fuzz targets; atheris drives them at length, hypothesis for a moment in the tests."""
