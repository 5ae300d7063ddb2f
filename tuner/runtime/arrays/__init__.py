"""Arrays of any library, as a launch passes them on."""
