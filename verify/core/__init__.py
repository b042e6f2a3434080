"""The trusted core: what a schedule of a collective is, and whether it is right."""
