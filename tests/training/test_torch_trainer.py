"""The torch trainer on the tiny model: it learns, exactly, the same each time, and leaves everything else alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra `train` is not installed")
pytest.importorskip("peft", reason="the extra `train` is not installed")
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from reef.errors import TrainingError
from reef.serving.models import tiny
from reef.training import checkpoint
from reef.training.distributed import Group
from reef.training.job import TrainingJob
from reef.training.learning import Learning
from reef.training.policy import logprobs, open_model, open_policy
from reef.training.sample import Sample, Teacher
from reef.training.torch_trainer import TorchTrainer
from tests.support import training as toys

CPU = torch.device("cpu")
FULL = {"method": "full", "learning_rate": 2e-5}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def samples(base: Path) -> tuple[Sample, ...]:
    return toys.rewarded(base, reward=toys.even_share)


def trained(job: TrainingJob) -> Path:
    job.folder.mkdir()
    return TorchTrainer().train(job).folder


def learning(job: TrainingJob) -> Learning:
    torch.manual_seed(job.settings.seed)
    return Learning(job, open_policy(job, group=Group(rank=0, size=1)))


def gap(model: object, samples: tuple[Sample, ...]) -> float:
    """How much likelier the better answers are than the worse ones, beside what they were when they were generated."""
    change = [float(toys.forward(model, each.tokens)[-each.generated :].sum()) - sum(each.old_logprobs) for each in samples]
    mean = sum(each.reward or 0.0 for each in samples) / len(samples)
    return sum(value * ((each.reward or 0.0) - mean) for value, each in zip(change, samples, strict=True))


@pytest.mark.parametrize("settings", [{}, FULL], ids=["lora", "full"])
def test_what_was_rewarded_becomes_likelier_and_the_loss_goes_down(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...], settings: dict[str, object]
) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=samples, settings={**settings, "epochs": 4})
    job.folder.mkdir()
    result = TorchTrainer().train(job)
    assert result.metrics["updates"] == 4
    assert result.metrics["tokens"] == 4 * sum(sample.generated for sample in samples)
    model = open_model(base if "method" not in settings else result.folder, dtype=torch.float32, device=CPU)
    if "method" not in settings:
        model = PeftModel.from_pretrained(model, str(result.folder))
    assert gap(model, samples) > 0.1


def test_a_lora_gives_the_same_log_probabilities_when_it_is_loaded_again(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    steps = learning(toys.job(tmp_path / "job", base=base, samples=samples))
    steps.run()
    (tmp_path / "lora").mkdir()
    steps._policy.save(tmp_path / "lora", base=base)
    again = PeftModel.from_pretrained(open_model(base, dtype=torch.float32, device=CPU), str(tmp_path / "lora"))
    untrained = open_model(base, dtype=torch.float32, device=CPU)
    for sample in samples:
        now = toys.forward(steps._policy.model, sample.tokens)
        assert torch.equal(toys.forward(again, sample.tokens), now)
        assert not torch.allclose(toys.forward(untrained, sample.tokens), now, atol=1e-4)


def test_the_policy_reads_the_same_log_probabilities_as_a_plain_forward_pass(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...]
) -> None:
    from reef.training.microbatches import cut

    policy = open_policy(toys.job(tmp_path / "job", base=base, samples=samples), group=Group(rank=0, size=1))
    model = open_model(base, dtype=torch.float32, device=CPU)
    for batch in cut(samples, tokens=64)[0]:
        logits_BGV, states_BGH = policy.read(batch.reading(CPU))
        assert logits_BGV.shape[:2] == states_BGH.shape[:2] == (len(batch.samples), max(each.generated for each in batch.samples))
        said_BG = logprobs(logits_BGV, batch.ids(CPU))
        for each, said in zip(batch.samples, said_BG, strict=True):
            torch.testing.assert_close(said[: each.generated], toys.forward(model, each.tokens)[-each.generated :], atol=2e-5, rtol=0)


@pytest.mark.parametrize("loss", ["grpo", "ttt_discover", "sao"])
def test_gradients_are_the_same_however_the_batch_is_cut(tmp_path: Path, base: Path, samples: tuple[Sample, ...], loss: str) -> None:
    found = []
    for tokens in (1, 60, 10_000):
        job = toys.job(tmp_path / "job", base=base, samples=samples, loss=loss, settings={**FULL, "micro_batch_tokens": tokens})
        steps = learning(job)
        tally = steps.gradients(steps._prepare(samples).samples)
        found.append((tally.loss, {name: each.grad.clone() for name, each in steps._policy.trained.items() if each.grad is not None}))
    whole_loss, whole = found[-1]
    assert any(grad.abs().max() > 1e-4 for grad in whole.values())
    for cut_loss, cut in found[:-1]:
        assert cut_loss == pytest.approx(whole_loss, rel=1e-5, abs=1e-5)
        for name, grad in whole.items():
            torch.testing.assert_close(cut[name], grad, atol=1e-5 * float(grad.abs().max()) + 2e-6, rtol=1e-3)


@pytest.mark.parametrize("settings", [{}, FULL], ids=["lora", "full"])
def test_the_same_job_gives_the_same_bytes(tmp_path: Path, base: Path, samples: tuple[Sample, ...], settings: dict[str, object]) -> None:
    given = {**settings, "epochs": 2, "samples_per_update": 4, "seed": 7}
    folders = [trained(toys.job(tmp_path / name, base=base, samples=samples, settings=given)) for name in ("one", "two")]
    assert toys.digest(folders[0]) == toys.digest(folders[1])
    other = trained(toys.job(tmp_path / "three", base=base, samples=samples, settings={**given, "seed": 8}))
    assert toys.digest(folders[0]) != toys.digest(other)


@pytest.mark.parametrize("settings", [{}, FULL], ids=["lora", "full"])
def test_two_steps_in_two_jobs_are_two_steps_in_one_and_the_parent_stays_as_it_is(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...], settings: dict[str, object]
) -> None:
    at_once = trained(toys.job(tmp_path / "both", base=base, samples=samples, settings={**settings, "epochs": 2}))
    first = trained(toys.job(tmp_path / "first", base=base, samples=samples, settings=settings))
    before = toys.digest(first), toys.digest(base)
    second = trained(toys.job(tmp_path / "second", base=base, samples=samples, settings=settings, parent=first))
    assert (toys.digest(first), toys.digest(base)) == before
    for name in ("model" if settings else "adapter_model", "state/optimizer"):
        one, two = load_file(at_once / f"{name}.safetensors"), load_file(second / f"{name}.safetensors")
        assert one.keys() == two.keys()
        for key in one:
            torch.testing.assert_close(one[key], two[key], atol=1e-6, rtol=1e-5)


def test_a_full_checkpoint_has_all_that_an_engine_needs_and_the_embedding_of_its_base(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...]
) -> None:
    folder = trained(toys.job(tmp_path / "job", base=base, samples=samples, settings=FULL))
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {path.name for path in folder.iterdir()}
    old, new = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name].float(), new[name])}
    assert changed and not any("embed_tokens" in name for name in changed)
    assert checkpoint.problems(folder) == []
    (folder / "tokenizer.json").write_text("{}")
    assert checkpoint.problems(folder) == ["tokenizer.json was changed"]


def test_a_value_head_learns_what_answers_are_worth_and_is_kept(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    parent, losses = None, []
    for step in range(6):
        job = toys.job(
            tmp_path / f"step-{step}",
            base=base,
            samples=samples,
            loss="sao",
            parent=parent,
            settings={"critic_learning_rate": 0.02},
            options={"warm_up_steps": 3, "critic_updates": 5},
        )
        job.folder.mkdir()
        result = TorchTrainer().train(job)
        assert result.metrics["updates"] == (0 if step < 3 else 1)
        losses.append(result.metrics["critic_loss"])
        parent = result.folder
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
    untouched = load_file(tmp_path / "step-2" / "checkpoint" / "adapter_model.safetensors")
    assert all(not tensor.any() for name, tensor in untouched.items() if "lora_B" in name)


def taught(base: Path) -> tuple[Sample, ...]:
    return tuple(
        sample.replace(teacher=Teacher.with_prompt((9, 8, 7, 6, *sample.tokens[:2]), sample_tokens=sample.tokens, mask=sample.mask))
        for sample in toys.rewarded(base, reward=toys.even_share)
    )


@pytest.mark.parametrize("loss", ["sdft", "sdpo", "opd"])
@pytest.mark.parametrize("settings", [{}, {"method": "full", "learning_rate": 1e-4}], ids=["lora", "full"])
def test_distillation_moves_the_student_to_its_teacher(tmp_path: Path, base: Path, loss: str, settings: dict[str, object]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=taught(base), loss=loss, settings={**settings, "epochs": 6})
    steps = learning(job)
    first = steps.gradients(job.samples).metrics
    steps.optimizer.zero_grad()
    steps.run()
    last = steps.gradients(job.samples).metrics
    name = "divergence"
    assert abs(last[name]) < abs(first[name])


def test_an_averaged_teacher_follows_and_is_kept(tmp_path: Path, base: Path) -> None:
    one = trained(toys.job(tmp_path / "one", base=base, samples=taught(base), loss="sdft"))
    student, teacher = load_file(one / "adapter_model.safetensors"), load_file(one / "state" / "teacher.safetensors")
    moved = [(name, tensor) for name, tensor in student.items() if "lora_B" in name]
    for name, tensor in moved:  # it began at zero, like the student
        torch.testing.assert_close(teacher[name.replace(".weight", ".default.weight")], 0.01 * tensor, atol=1e-7, rtol=1e-4)
    two = trained(toys.job(tmp_path / "two", base=base, samples=taught(base), loss="sdft", parent=one))
    after = load_file(two / "state" / "teacher.safetensors")
    assert any(not torch.equal(after[name], teacher[name]) for name in teacher)


def test_a_teacher_of_its_own_is_read(tmp_path: Path, base: Path) -> None:
    other = tiny(tmp_path / "other", seed=5)
    taught_by_itself = learning(toys.job(tmp_path / "a", base=base, samples=taught(base), loss="opd"))
    taught_by_other = learning(toys.job(tmp_path / "b", base=base, samples=taught(base), loss="opd", teacher=other))
    assert taught_by_itself.gradients(taught(base)).loss != taught_by_other.gradients(taught(base)).loss


def test_the_base_is_read_with_the_lora_off(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    parent = trained(toys.job(tmp_path / "one", base=base, samples=samples, settings={"epochs": 3}))
    steps = learning(toys.job(tmp_path / "two", base=base, samples=samples, loss="ttt_discover", options={"kl": 0.1}, parent=parent))
    steps._look(samples)
    model = open_model(base, dtype=torch.float32, device=CPU)
    for sample in samples:
        row = torch.tensor(steps._base_rows[sample.tokens, sample.mask][-sample.generated :])
        torch.testing.assert_close(row, toys.forward(model, sample.tokens)[-sample.generated :], atol=2e-5, rtol=0)


def test_equal_rewards_are_said_to_carry_no_signal(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    job = toys.job(tmp_path / "job", base=base, samples=[sample.replace(reward=1.0) for sample in samples])
    with pytest.raises(TrainingError, match=f"none of {len(samples)} samples can be learned from"):
        trained(job)
    assert not job.output.exists()


def test_weights_that_are_no_numbers_end_in_an_error_and_nothing_is_written(
    tmp_path: Path, base: Path, samples: tuple[Sample, ...]
) -> None:
    parent = trained(toys.job(tmp_path / "one", base=base, samples=samples))
    (weights := parent / "adapter_model.safetensors").chmod(0o644)
    save_file({name: tensor * float("nan") for name, tensor in load_file(weights).items()}, weights)
    job = toys.job(tmp_path / "two", base=base, samples=samples, parent=parent)
    with pytest.raises(TrainingError, match="not_finite"):
        trained(job)
    assert list(job.folder.iterdir()) == []


def test_a_sample_whose_loss_overflows_is_left_out_and_counted(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    hopeless = tuple(-2000.0 if generated else 0.0 for generated in samples[0].mask)  # exp(log π − q) is infinite
    job = toys.job(tmp_path / "job", base=base, samples=[samples[0].replace(old_logprobs=hopeless), *samples[1:]], loss="ttt_discover")
    job.folder.mkdir()
    result = TorchTrainer().train(job)
    assert result.skipped == Counter(not_finite=1)


def test_a_parent_of_another_method_is_refused(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    lora = trained(toys.job(tmp_path / "one", base=base, samples=samples))
    with pytest.raises(TrainingError, match=r"is a LoRA, and training\.method is full"):
        trained(toys.job(tmp_path / "two", base=base, samples=samples, settings=FULL, parent=lora))
    with pytest.raises(TrainingError, match=r"is a whole model, and training\.method is lora"):
        trained(toys.job(tmp_path / "three", base=base, samples=samples, parent=base))


def test_a_token_that_the_model_does_not_have_is_refused(tmp_path: Path, base: Path, samples: tuple[Sample, ...]) -> None:
    strange = dataclasses.replace(samples[0], tokens=(toys.VOCABULARY, *samples[0].tokens[1:]))
    with pytest.raises(TrainingError, match="the batch has the token 1024"):
        trained(toys.job(tmp_path / "job", base=base, samples=[strange, *samples[1:]]))


@pytest.mark.parametrize("settings", [{}, FULL], ids=["lora", "full"])
def test_bfloat16_comes_close_to_float32(tmp_path: Path, base: Path, samples: tuple[Sample, ...], settings: dict[str, object]) -> None:
    steps = learning(toys.job(tmp_path / "job", base=base, samples=samples, settings={**settings, "dtype": "bfloat16"}))
    tally = steps.gradients(steps._prepare(samples).samples)
    assert 0 < tally.metrics["kl"] / tally.used < 0.01  # from the same weights in float32, where it is below 1e-10
    assert all(parameter.dtype == torch.float32 for parameter in steps._policy.trained.values())
