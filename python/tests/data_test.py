"""Schedules as values. Nothing here imports torch."""

import os
import pickle
import subprocess
import sys

import pytest

import stagecraft as sc


def test_a_schedule_is_a_value():
    s = sc.Schedule.build("zbvzerobubble", ranks=4, microbatches=8)
    same = sc.Schedule.build("ZBVZeroBubble", ranks=4, microbatches=8)
    other = sc.Schedule.build("ZBVZeroBubble", ranks=4, microbatches=9)
    assert s == same and hash(s) == hash(same) and s != other and s != "text"
    assert pickle.loads(pickle.dumps(s)) == s
    assert (s.ranks, s.stages, s.microbatches, s.level) == (4, 8, 8, "compute")
    assert s.placement == (0, 1, 2, 3, 3, 2, 1, 0)
    assert str(s).startswith("0F0,0F1") and "4 ranks" in repr(s)
    assert sc.Schedule.parse(str(s)).lists == s.lists
    assert s.to_table().startswith("step")


def test_every_schedule_builds_and_lowers():
    for name in sc.schedule_names():
        s = sc.Schedule.build(name, ranks=2, microbatches=4)
        assert s.verify() == []
        lowered = s.lower()
        assert lowered.level == "lowered" and lowered.verify() == []
        assert sc.Schedule.parse(lowered.to_json()) == lowered


def test_files(tmp_path):
    s = sc.Schedule.build("1F1B", ranks=2, microbatches=4).lower(prefetch=1)
    s.to_csv(tmp_path / "mine.csv")
    assert sc.Schedule.read(tmp_path / "mine.csv") == s
    s.to_json(str(tmp_path / "mine.json"))
    assert sc.Schedule.read(str(tmp_path / "mine.json")) == s
    with pytest.raises(sc.Error):
        sc.Schedule.read(tmp_path / "none.csv")


def test_errors_have_their_attributes():
    with pytest.raises(sc.ParseError) as parse:
        sc.Schedule.parse("0F0,0X0\n")
    assert (parse.value.lineno, parse.value.column) == (1, 6)
    with pytest.raises(ValueError, match="Nope"):
        sc.Schedule.build("Nope", ranks=2, microbatches=4)
    stuck = sc.Schedule.of([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B0", "1B1"]])
    finding, = stuck.verify()
    assert finding.kind == "deadlock" and "wait for each other" in str(finding) and "1F1" in finding.cycle
    with pytest.raises(sc.ScheduleError, match="wait for each other") as error:
        stuck.check()
    assert error.value.actions and pickle.loads(pickle.dumps(error.value)).actions == error.value.actions


def test_files_that_are_not_there(tmp_path):
    for error in (sc.FileError, OSError, sc.Error):
        with pytest.raises(error, match="nowhere"):
            sc.Schedule.read(tmp_path / "nowhere.csv")


def test_simulation():
    s = sc.Schedule.build("GPipe", ranks=2, microbatches=2)
    run = s.simulate(sc.Costs(F=1, B=2, latency=0.5))
    # 0F0 0F1 . . ; 1F0 1F1 1B0 1B1: 1 + .5 + 2 + 2 + 2 + .5 + 2
    assert run.makespan == 10.0 and run.schedule is s and run.costs.latency == 0.5
    assert run.ranks[1].busy == 6.0 and run.ranks[0].peak_memory == 2.0 and run.transfers == 4
    assert run.bubble == pytest.approx(1 - 12 / 20)
    path = run.critical_path
    assert (path[0].action, path[0].start, path[-1].end) == ("0F0", 0.0, run.makespan)
    assert run.timeline(1)[0] == ("1F0", 1.5, 2.5)
    assert "makespan 10" in str(run) and "10" in repr(run)
    assert pickle.loads(pickle.dumps(run)).makespan == run.makespan
    slow = s.simulate(sc.Costs(F=1, B=2, stages={1: {"F": 4}}, links={(0, 1): {"latency": 3}}))
    assert slow.makespan > run.makespan
    assert s.simulate(sc.Costs(memory_cap=1)).over_cap == (0, 1)
    with pytest.raises(ValueError, match="speed"):
        s.simulate(sc.Costs(stages={0: {"speed": 1}}))
    with pytest.raises(sc.ArgumentError):
        s.simulate(sc.Costs(F=-1))


def test_costs_are_shown_as_they_are_written():
    costs = sc.Costs(F=18522, I=18086, W=9337, latency=601)
    assert repr(costs) == "Costs(F=18522, I=18086, W=9337, latency=601)"
    assert eval(repr(costs), {"Costs": sc.Costs}) == costs


def test_comparison():
    costs = sc.Costs(F=18522, I=18086, W=9337, latency=601)
    c = sc.compare(ranks=4, microbatches=8, costs=costs)
    times = [row.makespan for row in c.schedules]
    assert times == sorted(times) and c.best is c.schedules[0]
    assert {"GPipe", "1F1B", "ZBVZeroBubble"} <= {row.name for row in c.schedules}
    one = next(row for row in c.schedules if row.name == "1F1B")
    assert one.makespan == sc.Schedule.build("1F1B", ranks=4, microbatches=8).simulate(costs).makespan
    few = sc.compare(ranks=4, microbatches=2)
    assert "DualPipeV" in few.unfit and "DualPipeV" in str(few)
    assert "<table" in c._repr_html_()
    with pytest.raises(sc.ArgumentError, match="one cost for all stages"):
        sc.compare(ranks=2, microbatches=2, costs=sc.Costs(stages={0: {"F": 2}}))


def test_drawings(tmp_path):
    run = sc.Schedule.build("Interleaved1F1B", ranks=2, microbatches=4).simulate()
    run.draw(tmp_path / "x.html", title="mine")
    assert "mine" in (tmp_path / "x.html").read_text()
    assert run.draw(tmp_path / "x.svg", width=400).lstrip().startswith("<svg")
    assert '"traceEvents"' in run.draw(tmp_path / "x.json")
    assert run.draw(width=60).splitlines()[1].startswith("rank 0")
    assert "<svg" in run._repr_svg_() and "<svg" in run.schedule._repr_svg_()
    assert "srcdoc" in run.to_page()
    with pytest.raises(ValueError, match="pdf"):
        run.draw(form="pdf")
    assert sc.Schedule.of([["0B0", "0F0"]])._repr_svg_() is None


def test_nothing_needs_torch():
    script = ("import sys; sys.modules['torch'] = None\n"
              "import stagecraft as sc, stagecraft.data\n"
              "print(sc.Schedule.build('1F1B', ranks=2, microbatches=3).simulate().makespan)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.stdout.strip() == "12.0", done.stderr


def test_names_of_the_root():
    assert set(sc.__all__) <= set(dir(sc))
    assert sc.Schedule is sc.data.Schedule
    with pytest.raises(AttributeError, match="Nonsense"):
        sc.Nonsense  # noqa: B018


def test_tools_run():
    done = subprocess.run([sys.executable, "-m", "stagecraft", "compare", "--ranks", "4", "--microbatches", "8"],
                          capture_output=True, text=True, timeout=60, env=os.environ)
    assert "ZBVZeroBubble" in done.stdout, done.stderr
    done = subprocess.run([sys.executable, "-m", "stagecraft", "nonsense"], capture_output=True, text=True, timeout=60,
                          env=os.environ)
    assert done.returncode != 0 and "nonsense" in done.stderr


def _imports_with(tmp_path, metadata):
    for name, version in metadata.items():
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run([sys.executable, "-c", "import stagecraft"], capture_output=True, text=True, timeout=60, env=env)


def test_the_other_distribution_of_that_name_is_refused(tmp_path):
    done = _imports_with(tmp_path, {"stagecraft": "0.1.9"})
    assert "ImportError" in done.stderr and "pip uninstall -y stagecraft" in done.stderr


def test_another_minor_version_of_torch_is_refused(tmp_path):
    done = _imports_with(tmp_path, {"torch": "1.13.0"})
    assert "ImportError" in done.stderr and "pip install 'torch==" in done.stderr
