"""Networks whose gradients are profiled: written out here, so that neither torchvision nor a download is needed.

Each module has a class (or a function) that makes the network with its authors' shapes. The weights are never trained:
what counts are the sizes of the layers, their order, and the work that they are.
"""
