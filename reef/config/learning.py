"""``reef``, ``training``, ``evaluation`` and ``execution``: what learns, how candidates are made, and what they are judged on."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from reef.config.section import Section


class LearnerConfig(Section):
    """``reef``: which recipe learns, and from how much."""

    recipe: str = Field("record", description="Name in `reef.recipes`, or a dotted name `package.module:Class`.")
    batch_size: int = Field(1, ge=1, le=100_000, description="Reports that make one step of learning.")
    max_staleness: int = Field(18, ge=0, description="Releases a record may lag behind the head and still be learned from.")
    poll_interval_s: float = Field(1.0, gt=0, le=60, description="How often the learner looks at the log. A look takes about 5 ms.")
    options: dict[str, Any] = Field(default_factory=dict, description="The recipe's own options; the recipe checks them.")


class TrainingConfig(Section):
    """``training``: how a candidate's weights are made of a batch."""

    trainer: str = Field("torch", description="Name in `reef.trainers`, or a dotted name `package.module:Class`.")
    base: str = Field(
        "", description="The model that is trained, named as in `serving.vllm.model`. Empty: that one; it is needed with `attach`."
    )
    method: Literal["lora", "full"] = Field(
        "lora", description="`lora` trains a LoRA beside frozen weights, `full` the weights themselves."
    )
    rank: int = Field(16, ge=1, le=512, description="Rank of a new LoRA; a candidate keeps its parent's.")
    alpha: float = Field(32.0, gt=0, description="Scale of a new LoRA: its product is multiplied by `alpha / rank`.")
    targets: tuple[str, ...] = Field((), description="Modules a new LoRA is put on, by the end of their names; empty: every linear one.")
    freeze_embedding: bool = Field(True, description="With `full`: leave the token embedding, and a head that shares it, as they are.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="What is computed in. What is trained, log-probabilities and checkpoints are float32 always."
    )
    learning_rate: float = Field(4e-5, gt=0, le=1, description="Of AdamW, constant.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="Of AdamW.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="Of AdamW.")
    max_grad_norm: float = Field(1.0, ge=0, description="Longer gradients are cut to this norm; 0: never.")
    epochs: int = Field(1, ge=1, le=1000, description="Passes over a batch.")
    samples_per_update: int = Field(0, ge=0, description="Samples that make one update of the weights; 0: all of the batch.")
    micro_batch_tokens: int = Field(
        2048,
        ge=1,
        description="Tokens, padding included, that are in memory at once; a longer sample goes alone. Results change by rounding only.",
    )
    critic_learning_rate: float = Field(1e-3, gt=0, le=1, description="Of the value head, where the loss has one.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Same seed, batch, parent and machine: the same bytes.")
    keep_optimizer: bool = Field(True, description="Keep the optimizer's state with the checkpoint: twice the size of what is trained.")
    nice: int = Field(10, ge=0, le=19, description="Priority below that of serving.")
    threads: int = Field(0, ge=0, le=1024, description="Of each process, on the CPU; 0: half of the machine's cores, shared among them.")
    processes: int = Field(1, ge=1, le=64, description="More than one shards model and optimizer among them by FSDP2.")
    backend: Literal["local", "ray"] = Field(
        "local", description="`local`: on this machine, several under torchrun; `ray`: by Ray Train on a Ray cluster (the extra `ray`)."
    )
    address: str = Field(
        "",
        description="The cluster, for `ray`: `auto` or `HOST:PORT`, with the state folder and the model under the same paths on all of "
        "its machines. Empty starts one of its own on this machine.",
    )
    timeout_s: float = Field(3600.0, gt=0, description="Bound on making one candidate.")

    @field_validator("betas")
    @classmethod
    def _below_one(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("both must be at least 0 and less than 1")
        return betas


class SplitsConfig(Section):
    """``evaluation.splits``: which share of the tasks is kept apart."""

    heldout: float = Field(0.0, ge=0, lt=1, description="Share of the groups of tasks that only confirm what did well on the others.")
    sealed: float = Field(0.0, ge=0, lt=1, description="Share that no candidate is judged on, until somebody asks for it.")

    @model_validator(mode="after")
    def _leave_some(self) -> Self:
        if self.heldout + self.sealed >= 1:
            raise ValueError("heldout and sealed must leave a share for the search")
        return self


class EvaluationConfig(Section):
    """``evaluation``: what a candidate is judged on, and what judging may cost."""

    tasks: str = Field(
        "",
        description="YAML task set, or a folder of Harbor tasks, relative to serve.yaml. Without one no candidate is released by itself.",
    )
    splits: SplitsConfig = SplitsConfig()
    judge_model: str = Field("", description="The model that the grader `judge` asks, through the gateway; empty: the default one.")
    adapter: str = Field(
        "pi",
        description="Name in `reef.adapters`: the coding agent that runs the tasks; `chat` for none: the prompt is one request, "
        "for weights; `rules`: the same with the `AGENTS.md` of the harness as its system message.",
    )
    alpha: float = Field(0.05, gt=0, lt=1, description="Bound on the chance that a useless candidate is ever released in the chain's life.")
    min_effect: float = Field(
        0.1, gt=0, lt=1, description="The smallest improvement worth a release; what is shown to be below is rejected early."
    )
    protect: tuple[str, ...] = Field(
        (), description="Tags: the tasks with such a tag are a group on which a candidate may not be worse. See also `protected` of a task."
    )
    max_cost_ratio: float | None = Field(
        None, gt=0, description="How many times the head's cost a better candidate's may be, in money or, without prices, in tokens."
    )
    max_latency_ratio: float | None = Field(None, gt=0, description="The same of how long the runs take.")
    max_pairs: int = Field(60, ge=1, description="Budget of paired trials for one candidate.")
    max_tokens: int | None = Field(None, ge=1, description="Budget of tokens for one candidate, in and out of both sides. Empty: any.")
    max_cost: float | None = Field(None, gt=0, description="Budget of money for one candidate; needs prices. Empty: any.")
    max_seconds: float = Field(1800.0, gt=0, description="Budget of wall time for one candidate.")
    price_in: float = Field(0.0, ge=0, description="What a million prompt tokens cost, in any currency.")
    price_out: float = Field(0.0, ge=0, description="What a million completion tokens cost.")
    trial_timeout_s: float = Field(120.0, gt=0, description="Bound on one trial.")
    trial_memory_mb: int | None = Field(
        None, ge=16, description="Memory that each command of a trial may take in the sandbox. Empty: half of the machine's."
    )
    trial_processes: int = Field(2048, ge=8, description="Processes and threads that each command of a trial may have there at a time.")
    parallel: int = Field(2, ge=1, le=256, description="Trials that run at the same time.")
    sandbox: str = Field("auto", pattern="^(auto|bubblewrap|none)$", description="`auto` takes bubblewrap where it works.")

    @model_validator(mode="after")
    def _money_needs_prices(self) -> Self:
        if self.max_cost is not None and not (self.price_in or self.price_out):
            raise ValueError("max_cost needs price_in or price_out")
        return self


class ExecutionConfig(Section):
    """``execution``: where trials run."""

    backend: Literal["local", "ray"] = Field(
        "local", description="`local`: in the learner's process; `ray`: on a Ray cluster (the extra `ray`)."
    )
    address: str = Field(
        "", description="The cluster, for `ray`: `auto`, `HOST:PORT` or `ray://HOST:PORT`. Empty starts one of its own on this machine."
    )
    workers: int | None = Field(None, ge=1, le=4096, description="Trials that run at the same time there. Empty: `evaluation.parallel`.")
    gateway_url: str = Field(
        "", description="The gateway as workers on other machines reach it, without `/v1`. Empty: all of them are on this machine."
    )
    timeout_s: float = Field(
        1800.0, gt=0, description="Bound on one trial on a cluster, the wait for a free worker included: then it is given up there."
    )

    @field_validator("gateway_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return url.rstrip("/").removesuffix("/v1")
