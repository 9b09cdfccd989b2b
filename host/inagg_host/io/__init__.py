"""The shell around the core: sockets, threads, futures."""
