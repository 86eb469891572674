"""Who is handed out in each round: the participation controller, its draws and its devices."""
