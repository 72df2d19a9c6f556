# SPDX-License-Identifier: Apache-2.0
"""Each fault changes the words of the page within two seconds: fabricated answers."""

import answers
import harness
from harness import SLOW

WITHIN_S = 2  # of the page's virtual time
SLOW_LINK_MS = 1400
GAPS = {"poll_core_gaps": 9000, "poll_core_gap_longest_seconds": 196608e-9}


def member_killed(answer):
    gone = answer["members"].pop(1)
    answer["members_down"] = [{key: gone[key] for key in ("name", "address", "port")}
                              | {"state_ms": 600}]
    answers.finding(answer, "member_down", "warning",
                    "member node-01 (10.0.0.2:31998) is down for 0 s")


def member_gray(answer):
    answer["members"][2].update(state="silent", state_ms=2000)
    answers.finding(answer, "member_silent", "warning",
                    "member node-02 (10.0.0.3:31998) is silent for 2 s")


def rail_down(answer):
    answer["rails"][3]["state"] = "down"
    answers.finding(answer, "rail_down", "warning", "rail 3 (mlx5_3) is down")


def pool_full(answer):
    answer["recent"]["room_refused"] = 71
    answers.finding(answer, "pool_full", "warning",
                    "pool full: 71 requests for room were refused in the last 10 s")


def version_differs(answer):
    answer["members"][1]["software"] = "0.2.0"
    answers.finding(answer, "versions_differ", "warning",
                    "1 member(s) run another version: node-01 runs 0.2.0, this engine 0.1.0")


def loop_blocked(answer):
    answer["age_ms"] = 1700
    answers.finding(answer, "loop_blocked", "critical",
                    "the control plane is blocked for 1 s; figures are of that time")


def directory_moves(answer):
    answer["figures"].update(directory_moving=1, directory_owners_behind=1)


def cluster_of(state="up", **different):
    """/api/cluster with one member as given, in the engine's order."""
    answer = answers.cluster(3)
    row = answers.cluster_row(2, state=state, **different)
    answer["rows"] = [row] + answer["rows"][:2]
    answer["up"] -= state != "up"
    answer["silent"], answer["down"] = int(state == "silent"), int(state == "down")
    answer["others"] = answers.others(answer["rows"])
    return answer


def disk_failed(answer):
    answers.finding(answer, "disk_failed", "warning", "disk /d1 is out of service: I/O error")


class ClusterFaults(harness.PageTest):
    """A fault that another member's summary tells, or that the missing summary is."""

    def assert_first(self, answer, words, states, level="warning"):
        fake = self.fake()
        page = self.open(fake)
        page.wait_text("#cluster-title", "3 of 3", 20 * SLOW)
        first = "#table-cluster tbody tr"
        self.assertIn("nothing to report", page.text(first))
        fake.cluster = lambda: answer
        page.wait_text(first, words, WITHIN_S)
        self.assertIn("node-002", page.text(first))
        self.assertIn(states, page.text("#cluster-states"))
        self.assertEqual(page.js(f"document.querySelector('{first}').dataset.level"), level)

    def test_a_member_with_a_dead_nic_comes_first(self):
        self.assert_first(cluster_of(severity="critical", finding="rail_lost",
                                     summary=answers.summary(findings=1, rails_up=7)),
                          "critical: a NIC died", "3 up", "critical")

    def test_a_member_that_is_down_comes_first(self):
        self.assert_first(cluster_of("down", state_ms=3000, severity="warning",
                                     finding="member_down", age_ms=4000),
                          "down for 3 s", "2 up, 1 down")

    def test_a_member_that_does_not_answer_requests_for_summaries_is_named(self):
        self.assert_first(cluster_of(severity="warning", why="unanswered", age_ms=4000),
                          "warning: does not answer this engine", "3 up")

    def test_the_banner_judges_all_members(self):
        fake = self.fake()
        page = self.open(fake)
        page.wait_text("#worst", "Nothing to report of all 3 members.", 20 * SLOW)
        failed = cluster_of(severity="warning", finding="disk_failed",
                            summary=answers.summary(findings=2))
        fake.cluster = lambda: failed
        page.wait_text("#worst", "node-002: a disk failed; 1 more", WITHIN_S)
        self.assertEqual(page.text("#verdict"), "Not healthy: 1 warning")
        self.assertEqual(page.js("document.getElementById('health').dataset.level"), "warning")
        self.assertIn("a disk failed", page.text("#table-findings"))
        # the column names the engine that reports, not the member that the finding is about
        self.assertIn("Reported by", page.text("#table-findings thead"))
        # what is wrong with this engine is told in its own words, once
        own = cluster_of(severity="warning", finding="disk_failed", self=True)
        fake.cluster, fake.change = lambda: own, disk_failed
        page.wait_text("#worst", "disk /d1 is out of service", 10 * SLOW)
        page.wait_text("#verdict", "Not healthy: 1 warning", 10 * SLOW)
        self.assertNotIn("node-002", page.text("#worst"))

    def test_the_banner_counts_members_that_are_not_shown(self):
        answer = cluster_of(severity="critical", finding="rail_lost")
        answer["others"] = {"info": 9, "warning": 5, "critical": 3}
        fake = self.fake(cluster=lambda: answer)
        page = self.open(fake)
        page.wait_text("#worst", "others: 2 more members not shown here", 20 * SLOW)
        self.assertIn("others: 5 more members not shown here", page.text("#worst"))
        self.assertEqual(page.text("#verdict"), "Not healthy: 2 critical, 1 warning")

    def test_a_note_of_another_member_is_in_its_row_alone(self):
        answer = cluster_of(severity="info", finding="directory_moving",
                            summary=answers.summary(findings=1, moving=True))
        page = self.open(self.fake(cluster=lambda: answer))
        page.wait_text("#table-cluster", "note: directory entries move", 20 * SLOW)
        self.assertEqual(page.text("#verdict"), "Healthy")


class Faults(harness.PageTest):
    def assert_named(self, fault, *expected, level="warning"):
        """`expected`: (selector, words) that the page shows within two seconds of the fault."""
        fake = self.fake()
        page = self.open(fake)
        page.wait_text("#window", "in the last", 20 * SLOW)
        for selector, words in expected:
            self.assertNotIn(words, page.text(selector))
        if fault:
            fake.change = fault
        else:
            fake.close()
        left = WITHIN_S
        for selector, words in expected:
            left -= page.wait_text(selector, words, left)
        self.assertEqual(page.js("document.getElementById('health').dataset.level"), level)
        print(f"after {WITHIN_S - left:.2f} s", end=" ", flush=True)

    def test_a_killed_member_is_named_with_the_time_since_it_is_down(self):
        self.assert_named(member_killed, ("#worst", "member node-01 (10.0.0.2:31998) is down"),
                          ("#members", "node-01: down since"), ("#members .big", "2 of 3 up"),
                          ("#table-members", "down for 0 s"))

    def test_a_silent_member_is_named(self):
        self.assert_named(member_gray, ("#worst", "node-02 (10.0.0.3:31998) is silent"),
                          ("#members", "node-02: silent since"))

    def test_a_rail_that_is_down_is_named(self):
        self.assert_named(rail_down, ("#worst", "rail 3 (mlx5_3) is down"),
                          ("#bandwidth", "rail 3 (mlx5_3) is down"))

    def test_a_full_pool_is_named(self):
        self.assert_named(pool_full, ("#worst", "pool full"),
                          ("#evictions", "requests for room refused or late"))

    def test_versions_that_differ_are_named(self):
        self.assert_named(version_differs, ("#versions", "2 × 0.1.0, 1 × 0.2.0"),
                          ("#worst", "node-01 runs 0.2.0"))

    def test_a_blocked_control_plane_makes_the_figures_stale(self):
        self.assert_named(loop_blocked, ("#verdict", "STALE: the control plane is blocked"),
                          ("#freshness", "STALE, data of"), level="stale")

    def test_an_engine_that_is_gone_makes_the_figures_stale(self):
        self.assert_named(None, ("#verdict", "STALE: the engine does not answer"),
                          ("#freshness", "STALE, data of"), level="stale")

    def test_a_directory_that_moves_is_named(self):
        self.assert_named(directory_moves, ("#directory .big", "moving"),
                          ("#directory", "1 owner lacks entries"), level="ok")


class Rails(harness.PageTest):
    def test_a_rail_with_less_than_half_of_the_others_is_behind(self):
        def change(answer):
            answer["rails"][5]["recent"]["rail_read_bytes_per_second"] /= 4
        page = self.open(self.fake(change=change))
        page.wait_text("#bandwidth", "rail 5 (mlx5_5) is behind", 20 * SLOW)
        self.assertIn("up, behind", page.text("#table-rails"))

    def test_a_slow_line_rate_and_idle_rails_are_not_behind(self):
        def slower(answer):
            answer["rails"][5]["figures"]["rail_link_bytes_per_second"] /= 4
            answer["rails"][5]["recent"]["rail_read_bytes_per_second"] /= 4

        def idle(answer):
            for rail in answer["rails"][1:]:
                rail["recent"]["rail_read_bytes_per_second"] /= 1000
            answer["rails"][0]["recent"]["rail_read_bytes_per_second"] = 0
        for change in (slower, idle):
            page = self.open(self.fake(change=change))
            page.wait_text("#window", "in the last", 20 * SLOW)
            self.assertIn("No rail is behind.", page.text("#bandwidth"))

    def test_a_disturbed_poll_core_is_counted(self):
        def change(answer):
            answer["poll_cores"][2]["recent"].update(GAPS)
        page = self.open(self.fake(change=change))
        page.wait_text("#window", "in the last", 20 * SLOW)
        self.assertEqual(page.text("#cores .big"), "1 of 8 disturbed")
        self.assertIn("longest over 197 µs", page.text("#cores"))

    def test_gaps_of_cores_that_are_not_alone_are_no_alarm(self):
        def change(answer):
            for core, rail in zip(answer["poll_cores"], answer["rails"]):
                core["recent"].update(GAPS)
                rail.update(different)
        for different, mode in (({"busy": False, "isolated": True}, "adaptive"),
                                ({"busy": False, "isolated": False}, "adaptive"),
                                ({"busy": True, "isolated": False}, "not isolated")):
            page = self.open(self.fake(change=change))
            page.wait_text("#window", "in the last", 20 * SLOW)
            self.assertEqual(page.text("#cores .big"), mode)
            self.assertIn("longest over 197 µs", page.text("#cores"))
            levels = page.js("[...document.querySelectorAll('#cores, #table-cores tbody tr')]"
                             ".map(node => node.dataset.level).join('')")
            self.assertEqual(levels, "ok" * 9)
            page.close()


class Stale(harness.PageTest):
    def test_stale_figures_are_fresh_again_when_the_engine_answers(self):
        fake = self.fake(change=loop_blocked)
        page = self.open(fake, "stale")
        self.assertIn("old", page.text("#data .big"))
        fake.change = None
        page.wait("document.body.dataset.state === 'live'", 20 * SLOW, "live again")
        self.assertEqual(page.text("#verdict"), "Healthy")
        self.assertNotIn("STALE", page.text("body"))

    def test_a_hidden_tab_is_stale_only_when_a_request_failed(self):
        fake = self.fake()
        page = self.open(fake)
        page.wait_text("#window", "in the last", 20 * SLOW)
        page.js("Object.defineProperty(document, 'hidden', {value: true})")
        self.assertEqual(page.js("page.came -= 60000; refresh(); document.body.dataset.state"),
                         "live", "a slow timer is no fault of the engine")
        fake.close()
        page.wait("document.body.dataset.state === 'stale'", 10 * SLOW, "stale")

    def test_an_engine_that_never_answered_is_no_healthy_one(self):
        fake = self.fake(refuse="")
        fake.change = lambda answer: answer.clear()
        page = self.browser.open(fake.url)
        self.addCleanup(page.close)
        page.wait_text("#verdict", "No answer from the engine", 20 * SLOW)

    def test_an_answer_that_is_slow_to_come_is_not_stale(self):
        page = self.open(self.fake(), script="""
            const atOnce = window.fetch;
            window.fetch = async (...what) => {
                const answer = await atOnce(...what);
                await new Promise(done => setTimeout(done, %d));
                if (what[0] === "/api/status") window.answers++;
                return answer;
            };
            window.staleSeen = window.answers = 0;""" % SLOW_LINK_MS)
        page.js("""new MutationObserver(() => {
                if (document.body.dataset.state === "stale") staleSeen++;
            }).observe(document.body, {attributes: true})""")
        page.wait("answers > 5", 20 * SLOW, "five answers are shown")
        self.assertGreaterEqual(page.js("page.trip"), SLOW_LINK_MS)
        self.assertEqual(page.js("staleSeen"), 0)


if __name__ == "__main__":
    harness.main()
