"""Where rows go to."""
