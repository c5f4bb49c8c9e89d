"""Where other people's tools meet adaqn: a module for each, which alone imports it."""
