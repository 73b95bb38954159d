"""What a copy of the worker must do to be sound: threads, locks, sockets, descriptors, pools."""
