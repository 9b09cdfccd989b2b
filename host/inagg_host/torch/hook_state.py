"""The state of the DDP communication hook: a job on the switch, which follows its process group, and a compressor."""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Self, Unpack

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, PrefixStore
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import _get_default_store

from inagg_host.allreduce import AllReduce
from inagg_host.compress import Aggregation, Compressor
from inagg_host.compress.base import told
from inagg_host.config import ConfigError
from inagg_host.errors import CLOSED, AllReduceError
from inagg_host.stats import Counters

from . import finalizers
from .checkpoint import load, save
from .compressed import Apart, CompressedSums, Compression, choose, with_format
from .inner import ArrayGroup, collect, timeout_of
from .job import GroupJob
from .options import GroupOptions, check_names, option, with_local_size
from .scalar_log import GradientSample, ScalarLog, Writer
from .work import finished

log = logging.getLogger("inagg")

OWN = ("process_group", "timeout", "compressor", "plain")
"""Arguments of `InaggState` beside the options of its job."""


class InaggState:
    """The state of `inagg_hook`: a job on the switch, and a compressor if one was chosen.

        model = DistributedDataParallel(model)
        model.register_comm_hook(InaggState(switch="10.0.0.1:47100"), inagg_hook)

    Without ``compressor`` gradients go as they are, in the job's number format. With one, such as
    "ef+topk:k=0.01" (see `inagg_host.compress`), each parameter is compressed by itself; the format is then one in
    which the switch can sum that, unless you choose another such. `use` takes another compressor or format.

    It can be pickled into a checkpoint, and then holds what it was configured with, the secret excepted, and what the
    compressor remembers; neither process group, job, sockets nor threads. What a compressor remembers is this rank's
    own: each rank keeps its own checkpoint. A state that was restored uses the default group and has no parameters
    apart, unless `process_group` and `plain` are set, and joins a job of its own with its first bucket. Rounding noise
    of the formats depends on the job's seed and block numbers, which begin anew: of a given ``seed`` it thus repeats
    what it was at the beginning, for other gradients. That of a compressor goes on.

    A state may outlive its process group. With its first bucket in another default group (or in another
    ``process_group`` that it was given since) it leaves the job that it has, and joins one of that group's; counters
    begin anew. All ranks must do so: a state that is made is joined at once, and one that is there with its first
    bucket, or by `job`, which does it now. What a compressor remembers goes on where the ranks are as many, and is an
    error where they are not; so is a ``process_group`` that was destroyed.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        compressor: str | Compressor | None = None,
        plain: Iterable[torch.Tensor] = (),
        **options: Unpack[GroupOptions],
    ) -> None:
        """All ranks of ``process_group`` (None: of the default group) must do this at the same time; where there is no
        group yet, as in a launcher's configuration, the job is joined with the first bucket. ``timeout``: how long an
        operation may take; None: as long as one of ``process_group`` (`timeout_of`). ``plain``: parameters that are not
        compressed but averaged exactly by the process group, such as those of the last layer. ``options``: as
        `Options`. Raises `ConfigError` or `AllReduceError`.
        """
        check_names(options, *OWN)
        if not isinstance(timeout, timedelta | None):
            raise ConfigError(f"timeout is {timeout!r}: give a datetime.timedelta, as torch.distributed takes it")
        self.plain = tuple(plain)
        self.process_group, self.timeout = process_group, timeout
        self.options: dict[str, Any] = {**options}
        self.compressor = choose(compressor)
        self._scalar_log: ScalarLog | None = None
        self._compression: Compression | None = None
        self._saved_by: tuple[int, int] | None = None
        """Rank, and number of ranks, that had what this was restored with; None: it is of this rank."""
        self._forget()
        if dist.is_initialized():
            self.job()

    def _forget(self) -> None:
        self._joined: dist.ProcessGroup | None = None
        self._registered = False
        self._numbered = True
        self._buckets = 0
        """How many have come in this job, those that failed too: a script may catch an error of one rank alone, and the
        next bucket must not be averaged with another of the other ranks."""
        self._job: GroupJob | None = None
        self._sums: CompressedSums | None = None
        self._gather: ArrayGroup | None = None

    def use(self, compressor: str | Compressor | None, **options: Unpack[GroupOptions]) -> None:
        """Use another ``compressor`` (None: none), or another format or other ``options``, from the next bucket on.

        All ranks must do this at the same time, between two steps. What is remembered of parameters goes on; if the new
        compressor has no memory, it is added to their next gradients. Counters begin anew, but for what went to the
        inner group. Raises as the constructor; bad options change nothing.
        """
        check_names(options, "compressor")
        chosen, merged = choose(compressor), {**self.options, **options}
        elsewhere = self._elsewhere()
        new = self._make_job(chosen, merged)
        counts = self.counters.inner
        dist.barrier(group=self.group())  # nobody leaves a job that another rank still needs
        new.inner.update(counts)
        self._take(new, elsewhere)
        self.compressor, self.options = chosen, merged
        self.job()

    def group(self) -> dist.ProcessGroup:
        """The process group whose ranks share the gradients."""
        group = dist.group.WORLD if self.process_group is None else self.process_group
        assert group is not None, "call torch.distributed.init_process_group first"
        return group

    def job(self) -> GroupJob:
        """The job, joined. Raises `ConfigError` or `AllReduceError`."""
        elsewhere = self._elsewhere()
        if self._job is None or elsewhere:
            # For which all ranks come: none needs the job before any more.
            self._take(self._make_job(self.compressor, self.options), elsewhere)
            assert self._job is not None
        if self._job.workers > 1:
            sums = self._job.join()
            if self.compressor is not None and self._sums is None:
                self._sums = self._make_sums(self.compressor, sums.arrays)
        return self._job

    def _elsewhere(self) -> bool:
        """Whether the job is of another process group than is there now. Raises `ConfigError` where none can be joined
        in its place, or `AllReduceError` if this was closed: then on each call."""
        group, job = self.group(), self._job
        if self._registered and group is self._joined and not _is_registered(group):
            self.close()
            raise ConfigError("the process group that this state was given was destroyed: make a new InaggState")
        if job is None or group is self._joined:
            return False
        remembers = self._compression is not None and any(m.state for m in self._compression.memories.values())
        if remembers and job.workers != group.size():
            self.close()
            raise ConfigError(
                f"what this state's compressor remembers is of {job.workers} ranks, and the process group that is "
                f"there now has {group.size()}: make a new InaggState, which begins without it"
            )
        if job.closed:
            raise AllReduceError(f"{CLOSED}; for the process group that is there now, make a new InaggState")
        return True

    def _take(self, new: GroupJob, elsewhere: bool) -> None:
        """Have a ``new`` job in place of the one that there may be, which may be of a process group ``elsewhere``."""
        if self._job is not None:
            self._job.close()
        self._stop()
        if elsewhere:
            log.info("rank %d: another process group is there, of %d ranks: joining anew", new.rank, new.workers)
            if self._gather is not None:
                self._gather.close()
                self._gather = None
            self._numbered = False
        if self._scalar_log is not None:
            self._scalar_log.reset()
        self._buckets = 0
        self._job, self._joined = new, self.group()
        self._registered = _is_registered(self._joined)

    def _make_job(self, compressor: Compressor | None, options: dict[str, Any]) -> GroupJob:
        group, options = self.group(), with_format(compressor, options)
        if group is not dist.group.WORLD:
            options = with_local_size(options, dist.get_process_group_ranks(group))
        # The job must not hold the state: it is left when nobody else does.
        gather = partial(collect, group)
        finalizers.start()
        alike = {"compressor": None if compressor is None else told(compressor), "plain": len(self.plain)}
        store = _get_default_store()
        job = GroupJob(options, group.rank(), group.size(), self._limit, "ddp", gather, store, alike=alike)
        if compressor is not None and (local_size := job.settings.local_size) > 1:
            raise ConfigError(
                f"local_size is {local_size}, with which no rank has the whole gradient of a parameter that "
                f"{compressor} compresses: use a number format alone, or no local_size"
            )
        return job

    def _make_sums(self, compressor: Compressor, arrays: AllReduce) -> CompressedSums:
        own, steps = (None, b"[]") if self._compression is None else (self._compression.seed, self._compression.steps())
        mine = json.dumps([own, steps.decode(), self._saved_by]).encode()
        everyone = [json.loads(said) for said in collect(self.group(), mine)]
        for rank, (seed, _, saved_by) in enumerate(everyone):
            if saved_by not in (None, [rank, len(everyone)]):
                raise ConfigError(
                    f"rank {rank} of {len(everyone)} was given the state of rank {saved_by[0]} of {saved_by[1]}: what "
                    "a compressor remembers is each rank's own, so load on each what it has saved, or make a new "
                    "InaggState on all ranks"
                )
            if seed != everyone[0][0]:
                raise ConfigError(
                    f"rank {rank} does not remember the same run of {compressor} as rank 0: make a new InaggState on "
                    "all ranks, and then load on each what it has saved, if it has"
                )
        if self._compression is None:
            seed = option("seed", self.options)
            self._compression = Compression(int(self._agree(str(secrets.randbits(32) if seed is None else seed)), 0))
        self._saved_by = None
        self._compression.catch_up([steps.encode() for _, steps, _ in everyone])
        if compressor.aggregation is Aggregation.GATHER and self._gather is None:
            store = PrefixStore(f"{self._agree(f'gather/{secrets.token_hex(8)}')}/", _get_default_store())
            self._gather = ArrayGroup(store, self.group().rank(), self.group().size(), self._limit)
        gather = None if self._gather is None else self._gather.gather
        return CompressedSums(self._compression, arrays, self.group().rank(), self.group().size(), gather)

    def _agree(self, text: str) -> str:
        """The text of rank 0."""
        return collect(self.group(), text.encode())[0].decode()

    @property
    def _limit(self) -> timedelta:
        return timeout_of(self.group()) if self.timeout is None else self.timeout

    @property
    def counters(self) -> Counters:
        """Counters of what this rank has done, brought up to date. Buckets that were gathered count as "gather"."""
        counters = Counters() if self._job is None else self._job.counters
        gathers = counters.inner.get("gather", 0) + self.compression_counts["gathers"]
        return replace(counters, inner={**counters.inner, "gather": gathers}) if gathers else counters

    @property
    def compression_counts(self) -> Counter[str]:
        """Costs of the compressor in use: "gathers", "gathered-bytes" of this rank, "max-rounds"."""
        return Counter() if self._sums is None else self._sums.counts

    def average(self, bucket: GradBucket) -> dist.Work:
        """Begin to average a bucket in place: through the compressor, the switch, or the process group."""
        self._buckets += 1  # before anything that may fail; `job` may begin anew
        tensor, job, call = bucket.buffer(), self.job(), self._buckets
        if not self._numbered and self._compression is not None:
            self._compression.begin_model(bucket)
        self._numbered = True
        memories = None if self._compression is None else self._compression.memories
        first = bucket.index() == 0
        looks = self._scalar_log is not None and self._scalar_log.begin_bucket(first, lambda: self.counters, memories)
        why_not = job.why_not(tensor, ReduceOp.AVG)
        if why_not is None and self.compressor is not None and self._sums is not None:
            plain = {id(parameter) for parameter in self.plain}
            # Of an empty one there is nothing to compress.
            mask = [id(p) in plain or p.numel() == 0 for p in bucket.parameters()]
            if not all(mask):
                if any(mask):
                    job.inner["plain"] += 1
                return self._sums.average(self.compressor, bucket, Apart(bucket, mask, self.group()), call)
            why_not = "plain"
        if self._compression is not None:
            self._compression.release(bucket)
        if why_not is None:
            sample = self._sample(tensor) if looks else None
            own = None if sample is None else sample.contributed
            work = job.sum(tensor, ReduceOp.AVG, number=call, contributed=own)
            if sample is not None:
                work.get_future().add_done_callback(lambda done: sample.compute())
            return work
        job.inner[why_not] += 1
        # Not in place where it is sparse: its values may be another gradient's, too, as of two embeddings of one index.
        share = tensor.div_(job.workers) if tensor.layout is torch.strided else tensor / job.workers
        if job.workers == 1:
            return finished([share])
        return self.group().allreduce([share])

    def _sample(self, tensor: torch.Tensor) -> GradientSample | None:
        """A sample of a bucket, if it can be taken."""
        # Of float16 it is the quotients that are sent.
        hosts = self.job().settings.local_size > 1
        if self._scalar_log is None or tensor.is_cuda or tensor.dtype is torch.float16 or hosts:
            return None
        sample = GradientSample(tensor)
        self._scalar_log.take(sample)
        return sample

    def log_to(self, writer: Writer | None, every: int = 50, prefix: str = "inagg/") -> None:
        """Have ``writer`` (TensorBoard's `SummaryWriter`, a Lightning logger; None: nobody) draw, every so many steps,
        means of a step: bytes, times, what was sent again, codes that were invalid, what the inner group did; the norm
        of what error feedback remembers; and of one bucket that the switch sums without a compressor, on the CPU and
        not of float16, its rounding error, and the shares of values that became zero and of sums that are NaN. Raises
        TypeError or ValueError."""
        self._scalar_log = None if writer is None else ScalarLog(writer, every, prefix)

    def state_dict(self) -> dict[str, Any]:
        """The compressor's memory: tensors, numbers and strings. Each rank saves its own, between two steps."""
        return save(self.compressor, self._compression, self.group().rank(), self.group().size())

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Remember what `state_dict` gave on this rank, in a state that was made with the same compressor. All ranks
        must do this between the same steps. Parameters have no names here: what is remembered is given to them in the
        order in which the model has those that are trained, so these must be the same. Raises ValueError, and changes
        nothing, if it is another's."""
        seed, memories = load(self.compressor, saved, self.group().rank(), self.group().size())
        self._stop()
        self._saved_by = None
        if seed < 0:
            self._compression = None
        else:
            self._compression = Compression(seed, memories, self._compression)

    def close(self) -> None:
        """Leave the job; happens otherwise when the state is gone, as with a model that is wrapped anew, or at the exit
        of the process. No error if called twice."""
        if self._job is not None:
            _close(self._job, self._sums, self._gather)
        self._sums = self._gather = None

    def _stop(self) -> None:
        if self._sums is not None:
            self._sums.close()
            self._sums = None

    def __del__(self) -> None:
        job: GroupJob | None = getattr(self, "_job", None)  # there is none where the constructor has raised
        if job is not None and not job.closed:
            finalizers.submit(partial(_close, job, self._sums, self._gather))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        options = {name: value for name, value in self.options.items() if name != "secret"}
        state: dict[str, Any] = {"timeout": self.timeout, "options": options}
        if self.compressor is not None or self._compression is not None:
            state |= {"compressor": self.compressor, "compression": self._compression, "saved_by": self._saved_by}
            if self._saved_by is None and self._job is not None:
                state["saved_by"] = self._job.rank, self._job.workers
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group, self.plain = None, ()
        self.timeout, self.options = state["timeout"], state["options"]
        self.compressor, self._compression = state.get("compressor"), state.get("compression")
        self._saved_by = state.get("saved_by")
        self._scalar_log = None
        self._forget()


def _close(job: GroupJob, sums: CompressedSums | None, gather: ArrayGroup | None) -> None:
    """Close them in this order: nothing waits for what is not there any more."""
    job.close()
    for used in (sums, gather):
        if used is not None:
            used.close()


def _is_registered(group: dist.ProcessGroup) -> bool:
    """Whether torch.distributed knows the group: one that was destroyed it does not."""
    try:
        dist.get_global_rank(group, group.rank())
    except ValueError:
        return False
    return True
