"""What the commands do, as a library. Nothing here prints."""
