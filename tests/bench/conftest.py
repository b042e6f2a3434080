from bench.lab.fixture import lab  # noqa: F401
