"""What the ranks of `world` need; imported once, by the process that they are forked from."""

import torch._dynamo
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.parallel  # noqa: F401

import inagg_testbed.training  # noqa: F401
