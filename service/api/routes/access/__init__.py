"""Routes of who may do what: keys, projects and the two ways to sign in."""
