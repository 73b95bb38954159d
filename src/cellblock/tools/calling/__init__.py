"""What code in a session uses to find and call tools. Standard library only."""
