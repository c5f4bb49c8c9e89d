"""Makes ``laboratory`` importable by the tests in the folders below."""
