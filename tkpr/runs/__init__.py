"""One run: its folder, its files, its command line."""
