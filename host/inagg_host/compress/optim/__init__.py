"""Optimisers that go with compressed gradients: SGD with memory, and methods of the DIANA family.

`memory` and `parallel` follow Stich et al. 2018 (arXiv 1809.07599); `smoothness`, `quantize` and `diana` follow Wang,
Safaryan and Richtarik 2021 (arXiv 2106.03524). Import the modules: only `memory` needs PyTorch.
"""
