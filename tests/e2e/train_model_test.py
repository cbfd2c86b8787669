#!/usr/bin/env python3
"""`stagecraft train --model` as a user runs it: texts, examples as tensors, weights for Python, refusals.

    train_model_test.py STAGECRAFT ZOO [unittest options]

ZOO is the folder that tests/zoo_pt2/export_zoo.py has written: t5 and some feature graphs. The other models are exported here.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch
import torch._dynamo.config
import transformers
from torch import nn
from torch.export import Dim

import tool_support
from tool_support import ToolTest

BATCH, LENGTH = Dim("batch", min=1, max=32), Dim("length", min=4, max=32)
CONTEXT = 16
zoo = None
exported = None

SMALL = ["--batch", "8", "--microbatches", "4", "--eval-every", "0", "--sample", "0", "--steps", "4"]


def llama(vocabulary=256):
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False, attention_dropout=0.2,
        tie_word_embeddings=True, pad_token_id=None, bos_token_id=None, eos_token_id=None))


class Images(nn.Module):
    """What differs in evaluation: dropout and batch normalisation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 24),
                                  nn.ReLU())
        self.head = nn.Linear(24, 3)

    def forward(self, pixel_values, labels):
        logits = self.head(self.body(pixel_values.flatten(1)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Bytes(nn.Module):
    """The weights of small models of bytes, whose forwards are given below."""

    def __init__(self, vocabulary=256):
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(vocabulary, 8)
        self.head = nn.Linear(8, vocabulary)


class Scaled(Images):
    def forward(self, pixel_values, labels, scale):
        return super().forward(pixel_values * scale, labels)


def export(module, kwargs, dynamic, name):
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=dynamic is None):
        program = torch.export.export(module.train(), (), kwargs, strict=False, dynamic_shapes=dynamic)
    torch.export.save(program, exported / f"{name}.pt2")


def export_text(name, module, *inputs, dynamic=True):
    ids = torch.zeros(2, CONTEXT, dtype=torch.long)
    export(module, {each: ids.clone() for each in inputs},
           {each: {0: BATCH, 1: LENGTH} for each in inputs} if dynamic else None, name)


def export_models():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    export_text("labelled", llama(), "input_ids", "labels")
    export_text("plain", llama(), "input_ids", "attention_mask")
    export_text("static", llama(), "input_ids", "labels", dynamic=False)

    def small(name, forward, *inputs, vocabulary=256):
        export_text(name, type(name, (Bytes,), {"forward": forward})(vocabulary), *inputs)

    small("few_tokens", lambda self, ids: self.head(self.embed(ids)), "ids", vocabulary=97)
    small("segments", lambda self, ids, segments: self.head(self.embed(ids) + self.embed(segments)), "ids", "segments")
    small("no_logits", lambda self, ids: self.embed(ids).mean(), "ids")
    small("no_loss", lambda self, ids, labels: self.head(self.embed(ids) + self.embed(labels)), "ids", "labels")
    images = {"pixel_values": torch.randn(4, 3, 4), "labels": torch.zeros(4, dtype=torch.long)}
    dynamic = {name: {0: Dim("rows", min=2, max=64)} for name in images}
    export(Images(), images, dynamic, "images")
    export(Scaled(), images | {"scale": torch.tensor(2.0)}, dynamic | {"scale": None}, "scaled")


def image_data(rows=48):
    torch.manual_seed(5)
    labels = torch.randint(0, 3, (rows,))
    patterns = torch.randn(3, 3, 4)
    return {"pixel_values": 2 * patterns[labels] + 0.3 * torch.randn(rows, 3, 4), "labels": labels}


class ModelTest(ToolTest):
    def setUp(self):
        super().setUp()
        # The last tenth, which is held out, is the same whatever row is taken.
        text = " ".join(f"The {word} is {word}." for word in ["cat", "dog", "sun", "sea"] * 70)[:2700]
        self.write("text.txt", text + "a" * 300)

    def lines(self, *arguments):
        """The JSON lines of a run that must succeed."""
        return [json.loads(line) for line in self.good("train", "--json", *arguments).splitlines()]

    def options(self, model, *arguments):
        path = model if isinstance(model, pathlib.Path) else exported / f"{model}.pt2"
        options = ["--model", str(path)]
        if "--data" not in arguments:
            options += ["--data", "text.txt"]
        for name, value in zip(SMALL[::2], SMALL[1::2]):
            if name not in arguments:
                options += [name, value]
        if "--context" not in arguments and str(path).find("static") < 0:
            options += ["--context", str(CONTEXT)]
        return [*options, *arguments]

    def curve(self, model, *arguments):
        """Loss and norm by step."""
        return {line["step"]: (line["loss"], line["grad_norm"])
                for line in self.lines(*self.options(model, *arguments)) if "grad_norm" in line}

    def evaluation(self, model, *arguments):
        """The last evaluation."""
        found = [line for line in self.lines(*self.options(model, *arguments)) if "eval_loss" in line]
        return found[-1]["eval_loss"]

    def weights(self, path):
        return torch.load(self.folder / path, weights_only=True)


class Texts(ModelTest):
    def test_learning_beats_guessing_by_frequency(self):
        text = self.good("train", *self.options("labelled", "--steps", "60", "--lr", "0.01", "--sample", "20"))
        entropy = float(text.split("unigram entropy ")[1].split()[0])
        losses = [float(line.split("loss ")[1].split()[0]) for line in text.splitlines() if "  loss " in line]
        self.assertGreater(losses[0], 5)
        self.assertLess(losses[-1], 0.8 * entropy)
        self.assertIn("sample:\n", text)

    def test_the_curve_does_not_depend_on_the_cut(self):
        for model in ["labelled", "plain"]:
            one = self.curve(model, "--ranks", "1")
            self.assertEqual(sorted(one), [1, 2, 3, 4])
            for options in [["--ranks", "2"], ["--ranks", "4"], ["--ranks", "2", "--schedule", "ZBVZeroBubble"],
                            ["--split", "model.layers.1"]]:
                self.assertEqual(self.curve(model, *options), one, (model, options))
            self.assertNotEqual(self.curve(model, "--seed", "2"), one)

    def test_python_gives_the_same_loss_with_the_weights(self):
        ids = torch.full((8, CONTEXT), ord("a"))
        for name, inputs in [("labelled", {"labels": ids}), ("plain", {})]:
            loss = self.evaluation(name, "--ranks", "2", "--eval-every", "4", "--save-weights", "weights.pt")
            model = llama().eval()
            before = model(input_ids=ids).logits
            model.load_state_dict(self.weights("weights.pt"), strict=True)
            with torch.no_grad():
                output = model(input_ids=ids, **inputs)
            self.assertFalse(output.logits.equal(before))
            expected = output.loss
            if expected is None:
                expected = nn.functional.cross_entropy(output.logits.flatten(0, 1), ids.flatten())
            self.assertAlmostEqual(loss, expected.item(), places=5)

    def test_weights_are_the_same_however_it_is_cut(self):
        self.curve("labelled", "--ranks", "1", "--save-weights", "one.pt")
        self.curve("labelled", "--ranks", "4", "--save-weights", "four.pt")
        one, four = self.weights("one.pt"), self.weights("four.pt")
        self.assertEqual(list(one), list(four))
        self.assertIn("lm_head.weight", one)
        self.assertIn("model.embed_tokens.weight", one)
        for name in one:
            self.assertTrue(one[name].equal(four[name]), name)

    def test_processes_have_the_curve_of_threads(self):
        one = self.curve("labelled", "--ranks", "1", "--save-weights", "one.pt")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2",
                   tool_support.tool, "train", "--json", *self.options("labelled", "--save-weights", "two.pt")]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=150)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({line["step"]: (line["loss"], line["grad_norm"]) for line in lines}, one)
        ours, theirs = self.weights("two.pt"), self.weights("one.pt")
        self.assertTrue(all(ours[name].equal(theirs[name]) for name in theirs))

    def test_replicas_have_almost_that_curve(self):
        one = self.curve("labelled", "--ranks", "1")
        for step, numbers in self.curve("labelled", "--replicas", "2", "--microbatches", "2").items():
            self.assertAlmostEqual(numbers[0], one[step][0], places=4)

    def test_the_report_names_the_archive(self):
        self.curve("labelled", "--report-json", "report.json")
        self.assertIn('"labelled.pt2"', (self.folder / "report.json").read_text())

    def test_an_archive_of_one_shape_decides_batch_and_context(self):
        lines = self.lines("--model", exported / "static.pt2", "--data", "text.txt", "--microbatches", "4", "--steps", "2",
                           "--eval-every", "1")
        self.assertEqual([line["step"] for line in lines if "grad_norm" in line], [1, 2])
        self.assertEqual(len([line for line in lines if "eval_loss" in line]), 2)
        self.assertEqual(self.curve("static", "--batch", "8", "--context", "16"),
                         self.curve("labelled", "--batch", "8", "--context", "16"))
        for arguments, says in [
                (["--batch", "12"], "--batch 12 in 4 microbatches gives 3 rows each, but the model was exported for 2"),
                (["--batch", "9"], "--batch 9 in 4 microbatches gives 2 or 3 rows each, but the model was exported for 2"),
                (["--context", "8"], "--context 8: the model was exported for rows of 16")]:
            self.bad(2, "train", *self.options("static", *arguments), says=says)

    def test_resume_has_the_same_curve(self):
        whole = self.curve("labelled", "--steps", "6", "--save-weights", "whole.pt")
        self.curve("labelled", "--steps", "6", "--checkpoint", "run", "--save-every", "3", "--keep", "0", "--ranks", "4")
        shutil.rmtree(self.folder / "run/step-00000006")
        rest = {line["step"]: (line["loss"], line["grad_norm"])
                for line in self.lines("--resume", "run", "--ranks", "1", "--save-weights", "rest.pt")}
        self.assertEqual(rest, {step: whole[step] for step in (4, 5, 6)})
        whole, rest = self.weights("whole.pt"), self.weights("rest.pt")
        self.assertTrue(all(rest[name].equal(whole[name]) for name in whole))
        self.bad(2, "train", "--resume", "run", "--model", exported / "few_tokens.pt2", says="few_tokens.pt2")
        self.bad(2, "train", "--resume", "run", "--data", self.write("other.txt", "Other. " * 300),
                 says="trained on data different from --data")


class Examples(ModelTest):
    def test_images_train_and_evaluate_as_in_python(self):
        data = image_data()
        torch.save(data, self.folder / "images.pt")
        options = ["--data", "images.pt", "--steps", "30", "--batch", "16", "--lr", "0.01", "--held-out", "0.1667"]
        one = self.curve("images", *options, "--ranks", "1")
        self.assertLess(one[30][0], 0.6 * one[1][0])
        loss = self.evaluation("images", *options, "--ranks", "3", "--eval-every", "10", "--eval-batches", "1",
                               "--save-weights", "weights.pt")
        model = Images().eval()
        model.load_state_dict(self.weights("weights.pt"), strict=True)
        with torch.no_grad():
            expected = model(**{name: rows[-8:] for name, rows in data.items()})["loss"]
        self.assertAlmostEqual(loss, expected.item(), places=5)
        # Batches are counted in training alone: four microbatches a step.
        self.assertEqual(model.body[1].num_batches_tracked.item(), 30 * 4)

    def test_replicas_have_the_statistics_of_the_first(self):
        torch.save(image_data(), self.folder / "images.pt")
        self.curve("images", "--data", "images.pt", "--replicas", "2", "--microbatches", "2", "--save-weights", "weights.pt")
        self.assertEqual(self.weights("weights.pt")["body.1.num_batches_tracked"].item(), 4 * 2)

    def test_the_curve_does_not_depend_on_the_cut(self):
        torch.save(image_data(), self.folder / "images.pt")
        one = self.curve("images", "--data", "images.pt", "--ranks", "1")
        for options in [["--ranks", "2"], ["--ranks", "3"], ["--split", "head"]]:
            self.assertEqual(self.curve("images", "--data", "images.pt", *options), one, options)

    def test_resume_goes_on_with_the_rows(self):
        torch.save(image_data(), self.folder / "images.pt")
        whole = self.curve("images", "--data", "images.pt", "--steps", "9")
        self.curve("images", "--data", "images.pt", "--steps", "9", "--checkpoint", "run", "--save-every", "5", "--keep", "0")
        shutil.rmtree(self.folder / "run/step-00000009")
        rest = {line["step"]: (line["loss"], line["grad_norm"]) for line in self.lines("--resume", "run")}
        self.assertEqual(rest, {step: whole[step] for step in (6, 7, 8, 9)})
        torch.save(image_data(47), self.folder / "images.pt")
        self.bad(2, "train", "--resume", "run", "--checkpoint", "other", says="trained on data different from --data")

    def test_t5_translates(self):
        torch.manual_seed(7)
        torch.save({"input_ids": torch.randint(0, 97, (40, 12)), "labels": torch.randint(0, 97, (40, 9))},
                   self.folder / "pairs.pt")
        options = ["--data", "pairs.pt", "--steps", "3"]
        one = self.curve(zoo / "t5.pt2", *options, "--ranks", "1")
        self.assertLess(one[3][0], one[1][0])
        two = self.curve(zoo / "t5.pt2", *options, "--ranks", "2", "--save-weights", "weights.pt")
        for step in one:
            self.assertAlmostEqual(two[step][0], one[step][0], places=5)
        self.assertIn("shared.weight", self.weights("weights.pt"))


class Refusals(ModelTest):
    def refused(self, model, *arguments, says):
        self.bad(2, "train", *self.options(model, *arguments), says=says)

    def test_files(self):
        self.refused(self.folder / "none.pt2", says="none.pt2")
        self.refused(self.write("text.pt2", "no archive"), says="text.pt2")
        self.refused("labelled", "--data", "none.txt", says="none.txt: cannot be read")
        self.refused("labelled", "--data", ".", says="--data . is a folder")
        self.refused("images", "--data", "none.pt", says="none.pt: not a file of named tensors")
        self.refused("images", "--data", self.write("broken.pt", "no archive"),
                     says="broken.pt: not a file of named tensors")
        self.refused("labelled", "--program", "other", says="other")
        self.refused("labelled", "--save-weights", "no/such/folder/weights.pt",
                     says="no/such/folder/weights.pt")
        self.refused("labelled", "--save-weights", ".", says="cannot write .")

    def test_options(self):
        for option, value in [("--layers", "2"), ("--width", "16"), ("--heads", "2"), ("--positions", "rotary"),
                              ("--dropout", "0.1")]:
            self.refused("labelled", option, value, says="excludes")
        self.refused("labelled", "--untied", says="excludes")
        self.bad(2, "train", "--program", "main", says="--program requires --model")
        self.refused("labelled", "--split", "model.layers.9", says="there is no module 'model.layers.9'")
        self.refused("labelled", "--stages", "2", "--split", "model.layers.1", says="excludes")

    def test_sizes(self):
        self.refused("labelled", "--context", "40", says="--context 40: the model was exported for rows of 4 to 32")
        self.refused("labelled", "--batch", "400", "--microbatches", "4",
                     says="--batch 400 in 4 microbatches gives 100 rows each, but the model was exported for 1 to 32")
        torch.save(image_data(), self.folder / "images.pt")
        self.refused("images", "--data", "images.pt", "--batch", "4",
                     says="--batch 4 in 4 microbatches gives 1 rows each, but the model was exported for 2 to 64")

    def test_models_for_texts(self):
        self.refused("few_tokens", says="it has 97 tokens, but a text has 256 different bytes")
        self.refused("segments", says="its inputs segments cannot be made from a text; pass data with --data")
        self.refused("no_logits", says="its output has neither logits [rows, length, tokens] nor a loss")
        self.refused("no_loss", says="its output has no loss")
        self.refused(zoo / "number_input.pt2", says="its forward takes a number that may vary")
        self.refused(zoo / "several.pt2", says="expected the name of one of its 2 programs")
        self.refused("images", says="to train on a text it must take token ids, int64[rows, length]")

    def test_texts(self):
        self.refused("labelled", "--data", self.write("short.txt", "too short"),
                     says="the training part of the text has 8 bytes; --context 16 needs at least 33")
        self.refused("labelled", "--data", self.write("empty.txt", ""), says="expected a text, got an empty one")

    def test_examples(self):
        data = image_data()
        torch.save(data, self.folder / "images.pt")
        self.bad(2, "train", "--data", "images.pt", says="--data with examples as tensors (.pt) needs --model")
        self.refused("images", "--data", "images.pt", "images.pt", says="--data takes only one file of examples")
        torch.save({"labels": data["labels"]}, self.folder / "labels.pt")
        self.refused("images", "--data", "labels.pt",
                     says="--data has no tensor pixel_values; the model takes pixel_values, labels")
        torch.save(data | {"more": data["labels"]}, self.folder / "more.pt")
        self.refused("images", "--data", "more.pt", says="--data has 3 tensors; the model takes pixel_values, labels")
        torch.save(data | {"labels": data["labels"][1:]}, self.folder / "uneven.pt")
        self.refused("images", "--data", "uneven.pt", says="47")
        for name, pixels, says in [("double", data["pixel_values"].double(), "got Tensor[2, 3, 4] float64"),
                                   ("narrow", data["pixel_values"][:, :2], "got Tensor[2, 2, 4] float32"),
                                   ("flat", data["pixel_values"].flatten(1), "got Tensor[2, 12] float32")]:
            torch.save(data | {"pixel_values": pixels}, self.folder / f"{name}.pt")
            self.refused("images", "--data", f"{name}.pt",
                         says=["--data does not fit: kwargs[\"pixel_values\"]: expected Tensor[", says])
        torch.save({"input_ids": torch.zeros(40, 12, dtype=torch.long), "labels": torch.zeros(40, 70, dtype=torch.long)},
                   self.folder / "long.pt")
        self.refused(zoo / "t5.pt2", "--data", "long.pt", says=["labels", "is 70, expected at most 64"])
        torch.save(data | {"scale": torch.ones(48)}, self.folder / "scaled.pt")
        self.refused("scaled", "--data", "scaled.pt", says="its input scale has no rows")
        torch.save([data], self.folder / "list.pt")
        self.refused("images", "--data", "list.pt", says="list.pt: not a file of named tensors")


def main():
    global zoo, exported
    zoo = pathlib.Path(sys.argv.pop(2)).resolve()
    with tempfile.TemporaryDirectory() as folder:
        exported = pathlib.Path(folder)
        export_models()
        tool_support.main()


if __name__ == "__main__":
    main()
