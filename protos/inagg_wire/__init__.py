"""The packet that hosts and switches exchange: header, number formats, rounding noise, slots, errors."""
