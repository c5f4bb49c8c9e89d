"""What happened in the last cycles and what to change, in plain words. Loaded when somebody asks for it."""
