"""The standard, executable: one folder per chapter, one short test per requirement."""
