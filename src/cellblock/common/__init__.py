"""What every district may use: settings, threads, turns of the loop, files that are whole."""
