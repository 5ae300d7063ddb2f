"""The commands, a module a command or a group of them."""
