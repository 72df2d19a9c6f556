# SPDX-License-Identifier: Apache-2.0
"""The dashboard in headless Chromium, with fabricated answers: looks, words, faults, names."""

import answers
import harness
from harness import FIRST_S, GONE, SIZES, SLOW, THEMES

NAME = "<img src=x onerror=alert(1)>"


class Looks(harness.PageTest):
    def test_each_size_and_theme_is_sound_with_0_1_and_64_members(self):
        slowest = 0
        for members in (0, 1, 64):
            fake = self.fake(members, 1 if members < 2 else 8)
            for width, theme, page in self.open_all(fake):
                with self.subTest(members=members, width=width, theme=theme):
                    slowest = max(slowest, page.first_s)
                    page.wait("document.querySelector('#plot-hits b').innerText !== '–'", FIRST_S,
                              "plots")
                    page.wait_text("#window", "in the last", FIRST_S)
                    self.assertEqual(page.text("#members .big"),
                                     f"{members} of {members} up" if members else "none yet")
                    self.assertEqual(page.text("#verdict"), "Healthy")
                    self.assert_sound(page, fake)
                page.close()
        print(f"first figures at most {slowest:.2f} s after the address was entered")

    def test_the_first_screen_of_a_wide_window_has_banner_members_and_every_tile(self):
        for members, parts in ((3, "#health, #table-cluster, .tile"),
                               (64, "#health, #table-cluster, #cluster .tile")):
            page = self.open(self.fake(members), width=1440, height=900)
            page.wait_text("#window", "in the last", 20 * SLOW)
            self.assertEqual(page.js("[innerWidth, innerHeight]"), [1440, 900])
            self.assertLessEqual(self.lowest(page, parts), 900)

    def lowest(self, page, parts):
        return page.js(f"Math.max(...[...document.querySelectorAll('{parts}')]"
                       ".map(node => node.getBoundingClientRect().bottom + scrollY))")

    def test_members_come_before_all_tiles_and_plots_on_a_phone_too(self):
        page = self.open(self.fake(3), width=420, height=900)
        page.wait_text("#window", "in the last", 20 * SLOW)
        self.assertLess(self.lowest(page, "#table-cluster"), 450)
        self.assertTrue(page.js("[...document.querySelectorAll('.tile, .plot, #table-findings')]"
                                ".every(node => document.querySelector('#table-cluster')"
                                ".compareDocumentPosition(node) & 4)"))

    def test_tiles_of_one_group_are_of_one_size_except_for_a_table_in_them(self):
        page = self.open(self.fake(3), width=1440, height=900)
        for group in ("#cluster", "#figures"):
            sizes = page.js(f"[...document.querySelectorAll('{group} .tile')]"
                            ".filter(node => !node.querySelector('table'))"
                            ".map(node => node.getBoundingClientRect())"
                            ".map(box => Math.round(box.width) + 'x' + Math.round(box.height))")
            self.assertGreater(len(sizes), 4)
            self.assertEqual(len(set(sizes)), 1, sizes)

    def test_themes_differ(self):
        grounds = set()
        for theme in THEMES:
            page = self.open(self.fake(1), theme=theme)
            grounds.add(page.js("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(grounds), 2)

    def test_a_starting_engine_is_not_stale(self):
        for theme in THEMES:
            fake = self.fake(refuse="the engine is starting")
            page = self.open(fake, "starting", width=360, height=740, theme=theme)
            self.assertEqual(page.text("#verdict"), "Starting")
            self.assert_sound(page, fake, ["status of 503"])
        fake.refuse = None
        page.wait("document.body.dataset.state === 'live'", 20 * SLOW, "it has started")

    def test_faults_and_stale_figures_are_sound_too(self):
        fake = self.fake(64, change=everything_wrong)
        pages = self.open_all(fake, [360, 1440])
        for width, theme, page in pages:
            with self.subTest(width=width, theme=theme):
                page.wait_text("#window", "in the last", 20 * SLOW)
                self.assert_sound(page, fake)
        fake.close()
        for width, theme, page in pages:
            with self.subTest(width=width, theme=theme, stale=True):
                page.wait("document.body.dataset.state === 'stale'", 20 * SLOW, "stale")
                self.assert_sound(page, fake, GONE)


def everything_wrong(answer):
    report = answer
    report["members"][5].update(state="silent", state_ms=3200)
    report["members"][7]["software"] = "0.0.9"
    report["members_down"] = [{"name": f"node-{n}", "address": "10.0.0.77", "port": 31998,
                               "state_ms": 12345} for n in range(70, 76)]
    report["rails"][2]["state"] = "lost"
    report["rails"][3]["recent"]["rail_read_bytes_per_second"] /= 10
    report["figures"].update(directory_moving=1, directory_owners_behind=2)
    report["directory"]["dropped"] = 12
    report["poll_cores"][1]["recent"].update(poll_core_gaps=9000,
                                             poll_core_gap_longest_seconds=196608e-9)
    report["recent"].update(room_refused=500, get_failed_pages=700, entries_dropped=12,
                            reads_failed=3, directory_used_ratio=0.98)
    answers.finding(answer, "rail_lost", "critical", "rail 2 (mlx5_2) is lost: its NIC died")
    for n in range(70, 74):
        answers.finding(answer, "member_down", "warning",
                        f"member node-{n} (10.0.0.77:31998) is down for 12 s")
    answers.finding(answer, "directory_moving", "info", "directory entries move to new owners")


class Names(harness.PageTest):
    def test_a_member_named_like_markup_is_inert(self):
        def change(answer):
            report = answer
            report.update(name=NAME, cluster=NAME, version=NAME)
            report["members"][1].update(name=NAME, address=NAME, software=NAME, state="silent",
                                        state_ms=5000)
            report["members_down"] = [{"name": NAME, "address": NAME, "port": 1, "state_ms": 9000}]
            report["rails"][0].update(device=NAME, state=NAME)
            answers.finding(answer, "member_down", "warning", f"member {NAME} is down for 9 s")

        def cluster():
            answer = answers.cluster(3)
            answer["rows"][1].update(name=NAME, state=NAME, severity=NAME, finding=NAME, why=NAME,
                                     software=NAME)
            return answer
        fake = self.fake(change=change, cluster=cluster)
        page = self.open(fake, width=360, height=740)
        page.wait_text("#window", "in the last", 20 * SLOW)
        page.wait_text("#cluster-title", "3 of 3 members", 20 * SLOW)
        for selector in ("#members", "#worst", "#table-members", "#table-findings", "#table-rails",
                         "#engine", "#versions", "#table-cluster"):
            self.assertIn(NAME, page.js(f"document.querySelector('{selector}').textContent"))
        self.assertEqual(page.js("document.images.length"), 0)
        self.assert_sound(page, fake)

    def test_the_policy_refuses_markup_that_runs_code(self):
        fake = self.fake()
        page = self.open(fake, real=True)
        blocked = page.js("""new Promise(done => {
            const seen = new Set();
            document.addEventListener("securitypolicyviolation", event => {
                seen.add(event.effectiveDirective + " " + event.blockedURI);
                if (seen.size === 4) done([...seen].sort());
            });
            setTimeout(() => done([...seen].sort()), 5000);
            const box = document.createElement("div");
            document.body.append(box);
            box.innerHTML = `<img src="/x" onerror="window.hit = 1"><p style="color:red">x</p>
                <img src="data:," onerror="window.hit = 1">`;
            const script = document.createElement("script");
            script.textContent = "window.hit = 1";
            box.append(script);
        })""")
        self.assertEqual(blocked, [f"img-src {fake.url}x", "script-src-attr inline",
                                   "script-src-elem inline", "style-src-attr inline"])
        self.assertIsNone(page.js("window.hit"))

    def test_bytes_of_utf_8_are_put_together_and_what_reorders_text_is_replaced(self):
        def change(answer):
            answer["members"][1]["name"] = "knöten-é".encode().decode("latin-1")
            answer["members"][2]["name"] = "a\u202eb\x85".encode().decode("latin-1")
        page = self.open(self.fake(change=change))
        table = page.text("#table-members")
        self.assertIn("knöten-é", table)
        self.assertIn("a\ufffdb\ufffd", table)

    def test_a_long_name_moves_nothing(self):
        def change(answer):
            answer["name"] = "n" * 63
            answer["members"][1].update(name="w" * 63, state="silent", state_ms=4000)
            answers.finding(answer, "member_silent", "warning", "member " + "w" * 150)
        for width in SIZES:
            fake = self.fake(change=change)
            page = self.open(fake, width=width, height=SIZES[width])
            page.wait_text("#window", "in the last", 20 * SLOW)
            self.assert_sound(page, fake)


class Cluster(harness.PageTest):
    """The section of /api/cluster; test_faults.py has the faults."""

    def bad(self, members):
        return self.fake(members, cluster=lambda: answers.cluster(members, bad=True))

    def test_a_cluster_of_256_is_sound_well_or_not_at_each_size_and_theme(self):
        for fake in (self.fake(256), self.bad(256)):
            for width, theme, page in self.open_all(fake):
                with self.subTest(width=width, theme=theme):
                    page.wait_text("#cluster-title", "64 of 256 members", FIRST_S)
                    self.assertEqual(len(rows(page)), 64)
                    self.assert_sound(page, fake)
                page.close()

    def test_the_row_of_another_member_leads_to_its_dashboard(self):
        links = """[...document.querySelectorAll("#table-cluster tbody tr")].map(row =>
            [...row.querySelectorAll("a")].map(a => a.href + " " + a.textContent).join())"""
        fake = self.fake(5)
        made = answers.cluster(5)
        made["rows"][2]["dashboard"] = ""
        made["rows"][3]["dashboard"] = "javascript:alert(1)//:1/"
        made["rows"][4]["dashboard"] = "http://[fd00::4]:8080/"
        fake.cluster = lambda: made
        page = self.open(fake)
        page.wait_text("#cluster-title", "5 of 5", FIRST_S)
        self.assertEqual(page.js(links), [
            "", "http://10.0.0.1:31997/ node-001", "", "", "http://[fd00::4]:8080/ node-004"])
        made["rows"][1]["dashboard"], made["rows"][2]["dashboard"] = "", "http://gpu-2:31997/"
        page.wait(f"({links})[2]", FIRST_S, "the new link")
        self.assertEqual(page.js(links), [
            "", "", "http://gpu-2:31997/ node-002", "", "http://[fd00::4]:8080/ node-004"])
        self.assertEqual(rows(page)[1][0], "node-001", "the name stays without the link")
        self.assert_sound(page, fake)

    def test_each_size_of_cluster_says_how_many_are_shown(self):
        for members in (0, 1, 64, 65):
            page = self.open(self.fake(members))
            page.wait_text("#cluster-title", f"{min(members, 64)} of {members} member", FIRST_S)
            self.assertEqual(len(rows(page)), min(max(members, 1), 64))
            self.assertEqual(rows(page)[0][0], "node-000 (this engine)" if members else "–")
            page.close()

    def test_rows_come_in_the_order_of_the_engine_with_what_is_wrong_in_words(self):
        page = self.open(self.bad(64))
        page.wait_text("#cluster-title", "64 of 64", FIRST_S)
        figures, none = ["21.4 GB/s", "3.10 GB/s", "93.0%", "78.5%", "524 µs"], ["–"] * 5
        self.assertEqual(rows(page)[:8], [
            ["node-001", "up", "critical: a NIC died; 2 more", *figures, "0 s"],
            ["node-002", "down for 97 s", "warning: sends nothing", *none, "99 s"],
            ["node-003", "silent for 4 s",
             "warning: no heartbeats; does not answer this engine", *figures, "4 s"],
            ["node-004", "up", "warning: made up later", *figures, "0 s"],
            ["node-005", "up", "note: directory entries move", *figures, "0 s"],
            ["node-006", "up", "warning: does not answer this engine", *figures, "5 s"],
            ["node-007", "up", "no answer yet", *none, "–"],
            ["node-000 (this engine)", "up", "nothing to report", *figures, "0 s"]])
        self.assertEqual(page.text("#cluster-states"),
                         "worst first; 62 up, 1 silent, 1 down; totals are of 62 that answered")
        self.assertEqual(page.text("#cluster-rails .big"), "495 of 496 in use")
        self.assertIn("1 moving", page.text("#cluster-rails"))

    def test_a_summary_that_is_too_old_to_count_shows_no_figures(self):
        def cluster():
            answer = answers.cluster(3)
            answer["rows"][1].update(age_ms=20001, why="waiting")
            return answer
        page = self.open(self.fake(cluster=cluster))
        page.wait_text("#cluster-title", "3 of 3", FIRST_S)
        self.assertEqual(rows(page)[1][2:],
                         ["no fresh answer", *["–"] * 5, "20 s"])

    def test_percentiles_are_the_merged_ones_of_those_that_answered(self):
        def cluster():
            answer = answers.cluster(256, bad=True)
            answer["totals"].update(get_p50_seconds=1e-6, get_p99_seconds=2.5e-3,
                                    get_p999_seconds=1)
            return answer
        page = self.open(self.fake(256, cluster=cluster))
        page.wait_text("#cluster-title", "64 of 256", FIRST_S)
        self.assertEqual(cells(page, "#cluster-get"), ["1.00 µs", "2.50 ms", "1.00 s"])
        self.assertEqual(cells(page, "#cluster-set"), ["115 µs", "524 µs", "1.84 ms"])
        self.assertEqual(cells(page, "#cluster-exists"), ["–"] * 3)
        self.assertIn("of 254 of 256 members", page.text("#cluster-latency"))

    def test_a_hidden_tab_does_not_make_the_engine_ask_its_members(self):
        fake = self.fake()
        page = self.open(fake)
        page.wait_text("#cluster-title", "3 of 3", FIRST_S)
        page.js("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        page.js("window.before = page.came")  # a request may be in flight: 2 s later
        page.wait("page.came > before + 2000", 10 * SLOW, "/api/status is still asked")
        seen, status = fake.asked.count("/api/cluster"), fake.asked.count("/api/status")
        page.wait("page.came > before + 5000", 15 * SLOW, "/api/status is still asked")
        self.assertGreater(fake.asked.count("/api/status"), status)
        self.assertEqual(fake.asked.count("/api/cluster"), seen)
        page.js("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
        page.elapse(2000)
        self.assertGreater(fake.asked.count("/api/cluster"), seen, "a shown tab asks again")

    def test_an_engine_that_does_not_answer_about_the_cluster_shows_the_rest(self):
        fake = self.fake(cluster=None)
        page = self.open(fake)
        page.wait_text("#window", "in the last", 20 * SLOW)
        self.assertEqual(page.text("#verdict"), "Healthy")
        self.assertIn("other members are not known", page.text("#worst"))
        self.assertEqual(rows(page)[0][:3], ["–", "–", "not known"])
        self.assert_sound(page, fake, ["status of 404"])
        fake.cluster = answers.cluster
        page.wait_text("#worst", "Nothing to report of all 3 members.", 20 * SLOW)
        fake.cluster = None
        page.wait_text("#worst", "other members are not known", 20 * SLOW)
        self.assertEqual(page.text("#cluster-traffic .big"), "–", "old figures are not shown")

    def test_a_long_table_shows_its_first_rows_until_all_are_wanted(self):
        page = self.open(self.bad(64))
        page.wait_text("#cluster-title", "64 of 64", FIRST_S)
        shown = "[...document.querySelectorAll('#table-cluster tbody tr')]" \
                ".filter(row => row.offsetHeight).length"
        self.assertEqual((page.js(shown), page.text("#cluster-all")), (8, "Show all 64 members"))
        page.js("document.getElementById('cluster-all').click()")
        self.assertEqual((page.js(shown), page.text("#cluster-all")),
                         (64, "Show the first 8 members"))
        small = self.open(self.fake(3))
        small.wait_text("#cluster-title", "3 of 3", FIRST_S)
        self.assertTrue(small.js("document.getElementById('cluster-all').hidden"))


def rows(page, table="#table-cluster"):
    return page.js(f"[...document.querySelectorAll('{table} tbody tr')]"
                   ".map(row => [...row.cells].map(cell => cell.textContent))")


class Figures(harness.PageTest):
    def test_percentiles_are_those_of_the_answer(self):
        def change(answer):
            answer["recent"].update(get_p50_seconds=32.8e-6, get_p99_seconds=2.5e-3,
                                    get_p999_seconds=1, set_p50_seconds=-1, set_p99_seconds=-1,
                                    set_p999_seconds=-1)
            for rail, seconds in zip(answer["rails"], (-1, 32.8e-6)):
                rail["recent"]["rail_read_p99_seconds"] = seconds
        page = self.open(self.fake(3, 2, change=change))
        page.wait_text("#window", "in the last 10 s", 20 * SLOW)
        self.assertEqual(cells(page, "#latency-get"), ["32.8 µs", "2.50 ms", "1.00 s"])
        self.assertEqual(cells(page, "#latency-set"), ["–"] * 3)
        self.assertEqual([row[4] for row in rows(page, "#table-rails")], ["–", "32.8 µs"])

    def test_rates_and_hit_ratio_are_those_of_the_answers(self):
        page = self.open(self.fake(3))
        page.wait_text("#window", "in the last", 20 * SLOW)
        self.assertEqual(page.text("#bandwidth .big"), "21.4 GB/s")
        self.assertIn("set 3.10 GB/s", page.text("#bandwidth"))
        self.assertEqual(page.text("#hits .big"), "93.0%")
        self.assertIn("local 35.3%, remote 57.7%", page.text("#hits"))
        self.assertIn("exists: 93.0% found, 88.1% usable", page.text("#hits"))
        self.assertEqual(page.text("#evictions .big"), "412/s evicted")
        self.assertIn("after 3 h; 1.2% stored again in a minute", page.text("#evictions"))
        self.assertEqual(page.text("#space .big"), "pool 78.5%")
        self.assertIn("directory 38.1%", page.text("#space"))

    def test_the_pointer_on_a_plot_chooses_the_point_whose_values_are_shown(self):
        fake = self.fake()
        page = self.open(fake, height=1900)
        legend = "document.querySelector('#plot-bandwidth b').innerText"
        page.wait(legend + " !== '–'", FIRST_S, "plots")
        newest = page.js(legend)
        ends = "[...document.querySelectorAll('#plot-bandwidth .time span')].pop().innerText"
        at_the_end = page.js(ends)
        box = page.js("JSON.parse(JSON.stringify("
                      "document.querySelector('#plot-bandwidth svg').getBoundingClientRect()))")
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + box["width"] / 2,
                  y=box["y"] + 20)
        page.wait(legend + f" !== '{newest}'", 20 * SLOW, "another point")
        self.assertEqual(page.js(ends), at_the_end, "the axis still names its own end")
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
        page.wait(legend + f" === '{newest}'", 20 * SLOW, "the newest point")

    def point(self, page, share):
        """The pointer is over the plot of latencies, at this share of its width."""
        page.js(f"""(node => {{
            const box = node.getBoundingClientRect();
            node.dispatchEvent(new PointerEvent("pointermove",
                {{clientX: box.left + {share} * box.width, clientY: box.top + 9}}));
        }})(document.querySelector("#plot-latency .field svg"))""")

    def test_plots_show_joins_and_deaths_and_the_values_under_the_pointer(self):
        fake = self.fake(joined=(100, 101), died=(360,))
        page = self.open(fake)
        words = "dotted line: a member joined; dashed line: a member died"
        page.wait_text("#history-events", words, FIRST_S)
        for plot in ("bandwidth", "latency", "hits"):
            lines = page.js("['joined', 'died'].map(name => document.querySelector("
                            f"'#plot-{plot} path.' + name).getAttribute('d').split('M').length)")
            self.assertEqual(lines, [2 + 1, 1 + 1])
        tip = "#plot-latency .tip"
        self.assertTrue(page.js(f"document.querySelector('{tip}').hidden"))
        self.point(page, (361 + 1) / 720)  # of the 720 steps of 5 s, and two pixels beside it
        page.wait_text(tip, "1 member died", 20 * SLOW)
        for words in ("get p50", "get p99", "set p99", "µs"):
            self.assertIn(words, page.text(tip))
        self.point(page, 0.25)
        self.assertNotIn("member", page.text(tip))
        self.assert_sound(page, fake)
        plain = self.open(self.fake())
        plain.wait("document.querySelector('#plot-hits b').innerText !== '–'", FIRST_S, "plots")
        self.assertEqual(plain.text("#history-events"), "")

    def test_without_calls_there_is_a_dash_and_no_nan(self):
        page = self.open(self.fake(change=without_calls, points=0))
        page.wait_text("#window", "in the last", 20 * SLOW)
        self.assertEqual(page.text("#hits .big"), "–")
        self.assertEqual(page.text("#bandwidth .big"), "0 B/s")
        self.assertEqual(cells(page, "#latency-exists"), ["–"] * 3)
        for word in ("NaN", "undefined", "Infinity", "null"):
            self.assertNotIn(word, page.text("body"))


def without_calls(answer):
    recent = answer["recent"]
    for name in recent:
        if name.startswith(("get_", "set_", "exists_")):
            recent[name] = -1 if name.endswith(("ratio", "seconds")) else 0


def cells(page, row):
    return page.js(f"[...document.querySelectorAll('{row} td')].map(cell => cell.innerText)")


if __name__ == "__main__":
    harness.main()
