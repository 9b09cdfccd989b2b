"""Reports: one HTML file that holds its pictures and its data, to be kept, mailed and opened without a network.

`page` makes the file and needs the standard library alone; `figures` draws and needs matplotlib (the extra "report").
"""
