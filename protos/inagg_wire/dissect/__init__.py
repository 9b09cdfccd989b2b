"""Datagrams for people to look at: a scapy layer, and a dissector for Wireshark. Both derive from `layout`."""
