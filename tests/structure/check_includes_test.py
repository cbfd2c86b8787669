"""The include checker must find each kind of wrong include, and nothing in right ones."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_includes


def findings(path, *includes):
    text = "#pragma once\n" + "\n".join(f"#include {name}" for name in includes)
    return [message for _, message in check_includes.check_file(path, text)]


class CheckIncludes(unittest.TestCase):
    def test_accepts_what_the_table_allows(self):
        self.assertEqual(findings("stagecraft/microbatch/split.cpp", '"stagecraft/microbatch/split.h"',
                                  '"stagecraft/tree/tree.h"', '"stagecraft/base/error.h"', "<vector>",
                                  "<ATen/core/Tensor.h>"), [])

    def test_rejects_an_include_that_points_back(self):
        found = findings("stagecraft/tree/tree.h", '"stagecraft/microbatch/split.h"')
        self.assertEqual(len(found), 1)
        self.assertIn("tree may use ['base'] only", found[0])

    def test_keeps_microbatch_apart_from_attention(self):
        self.assertTrue(findings("stagecraft/microbatch/split.cpp", '"stagecraft/attention/block_mask.h"'))

    def test_rejects_a_transport_that_sees_a_schedule(self):
        self.assertTrue(findings("stagecraft/transport/local/world.cpp", '"stagecraft/schedule/action.h"'))

    def test_rejects_torch_in_the_torch_free_half(self):
        for path in ("stagecraft/base/error.h", "stagecraft/schedule/passes/x.cpp", "cli/main.cpp"):
            self.assertTrue(findings(path, "<c10/util/Exception.h>"), path)

    def test_keeps_torch_free_folders_of_the_tensor_half_torch_free(self):
        for path in ("stagecraft/transport/core/exchange.h", "stagecraft/runtime/record/recorder.cpp"):
            self.assertTrue(findings(path, "<ATen/core/ivalue.h>"), path)
            self.assertTrue(findings(path, '"stagecraft/transport/transport.h"'), path)
            self.assertEqual(findings(path, '"stagecraft/transport/core/transfer_id.h"', '"stagecraft/base/error.h"'), [])
        self.assertEqual(findings("stagecraft/runtime/record/recorder.h", '"stagecraft/schedule/action.h"'), [])
        self.assertEqual(findings("stagecraft/transport/transport.h", "<ATen/core/ivalue.h>",
                                  '"stagecraft/transport/core/transfer_id.h"'), [])

    def test_rejects_umbrella_headers_in_the_library_only(self):
        self.assertTrue(findings("stagecraft/stage/stage.cpp", "<torch/torch.h>"))
        self.assertEqual(findings("examples/demo.cpp", "<torch/torch.h>"), [])

    def test_rejects_relative_includes_unknown_folders_and_the_users_header(self):
        self.assertTrue(findings("stagecraft/tree/tree.cpp", '"tree.h"'))
        self.assertTrue(findings("stagecraft/tree/tree.cpp", '"tests/support/expect_error.h"'))
        self.assertEqual(findings("tests/benchmarks/harness_test.cpp", '"benchmarks/harness.h"'), [])
        self.assertTrue(findings("stagecraft/tree/tree.cpp", '"stagecraft/nowhere/x.h"'))
        self.assertTrue(findings("stagecraft/nowhere/x.cpp", "<vector>"))
        self.assertTrue(findings("stagecraft/tree/tree.cpp", '"stagecraft/stagecraft.h"'))

    def test_layers_inside_transport(self):
        self.assertFalse(findings("stagecraft/transport/wire/x.cpp", '"stagecraft/transport/device/staging.h"'))
        self.assertFalse(findings("stagecraft/transport/wire/x.cpp", '"stagecraft/transport/transport.h"'))
        self.assertTrue(findings("stagecraft/transport/device/x.cpp", '"stagecraft/transport/wire/frame.h"'))
        self.assertTrue(findings("stagecraft/transport/wire/x.cpp", '"stagecraft/transport/local/local_world.h"'))
        self.assertTrue(findings("stagecraft/transport/transport.h", '"stagecraft/transport/wire/frame.h"'))

    def test_the_tables_have_no_cycle(self):
        for table in (check_includes.ALLOWED, check_includes.TRANSPORT):
            for folder in table:
                for used in table[folder]:
                    self.assertNotIn(folder, check_includes.reachable(used, table), f"{folder} <-> {used}")


if __name__ == "__main__":
    unittest.main()
