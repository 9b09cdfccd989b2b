"""The live view: a page in a browser, over what the control plane sees anyway. See `server`."""
