/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rails clients are told not to use, and how those rails come back into use. A node is one
 * control plane in the test's process.
 */
#include "tests/unit/control/conns/conn_world.h"

#include <sys/mman.h>

static bool timers_fail;

int __real_net_timer_set(struct net_timer *timer, uint64_t us);
int __wrap_net_timer_set(struct net_timer *timer, uint64_t us);

int __wrap_net_timer_set(struct net_timer *timer, uint64_t us)
{
	return timers_fail ? -1 : __real_net_timer_set(timer, us);
}

/* Without its timer no rail would ever be found slow, so the engine must not start. */
static void a_watch_without_its_timer_is_refused(void **state)
{
	struct control control = {.base = node[0].control.base};

	timers_fail = true;
	assert_int_equal(conns_open(&control), -ENOMEM);
	timers_fail = false;
	assert_null(control.conns);
	conns_stop(&node[0].control);
}

static void a_probe_that_fails_leaves_the_rail_out(void **state)
{
	struct rail_conn *got = connected(1);

	assert_false(got->probe);
	assert_int_equal(rails_out(), 0);
	conns_broken(&node[0].control, 1, got, 0);
	assert_int_equal(rails_out(), 2);
	assert_int_equal(told(1, 1)->kind, RAIL_CONN_DROP);
	conns_returned(&node[0].control, 1, got);
	assert_int_equal(told(1, 2)->kind, RAIL_CONN_ADD);
	got = told(1, 2)->object;
	conns_broken(&node[0].control, 1, got, 0);
	/* the answer to the probe comes too late: the connection is broken already */
	conns_proven(&node[0].control, 1, got);
	assert_int_equal(rails_out(), 2);
	conns_returned(&node[0].control, 1, got);
	conns_stop(&node[0].control);
}

static void a_port_without_a_link_takes_its_rail_out_at_once(void **state)
{
	struct rail_conn *got = connected(1);
	unsigned peers_out;

	conns_port(&node[0].control, 1, -ENETDOWN, "no link");
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 2);
	assert_int_equal(node[0].control.counter[COUNTER_rails_down], 1);
	assert_string_equal(conns_rail_state(&node[0].control, 1, &peers_out), "down");
	assert_string_equal(conns_rail_state(&node[0].control, 0, &peers_out), "up");
	assert_int_equal(told(1, 1)->kind, RAIL_CONN_DROP);
	conns_returned(&node[0].control, 1, got);
	nodes_run(2 * CONN_BACKOFF_MS); /* node 0 makes no attempt while its port has no link */
	assert_int_equal(node[0].rail[1].tells, 2);
	want(1);
	assert_int_equal(told(1, 2)->kind, RAIL_CONN_REFUSE);
	conns_port(&node[0].control, 1, 0, "");
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 0);
	/* bit 1: clients do not use rail 1 towards node 1 until its probe is answered */
	assert_int_equal(rails_out(), 2);
	assert_int_equal(told(1, 3)->kind, RAIL_CONN_ADD);
	conns_proven(&node[0].control, 1, told(1, 3)->object);
	assert_int_equal(rails_out(), 0);
	assert_string_equal(conns_rail_state(&node[0].control, 1, &peers_out), "up");
	assert_int_equal(peers_out, 0);
	conns_stop(&node[0].control);
}

static bool looked(unsigned more)
{
	unsigned before = stub_count(PORT_LOOKS);

	return nodes_until(stub_count(PORT_LOOKS) >= before + more, 3000);
}

static void a_port_that_cannot_be_used_is_looked_at_until_it_can(void **state)
{
	unsigned peers_out;

	port_look_status = -EADDRNOTAVAIL;
	conns_port_look(&node[0].control, 1);
	assert_true(nodes_until(node[0].control.conns->health[1].port == -EADDRNOTAVAIL, 500));
	assert_string_equal(conns_rail_state(&node[0].control, 1, &peers_out), "down");
	assert_string_equal(conns_rail_why(&node[0].control, 1), "a stub said no");
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 2);
	assert_true(looked(2)); /* no event says that it can be used */
	port_look_status = 0;
	assert_true(nodes_until(shm_load(&node[0].control.status->rails_out) == 0, 3000));
	assert_string_equal(conns_rail_why(&node[0].control, 1), "");
	conns_stop(&node[0].control);
}

static void a_look_that_began_before_the_link_was_lost_does_not_count(void **state)
{
	struct port_look *look = &node[0].control.conns->health[1].look;

	conns_port_look(&node[0].control, 1);
	conns_port_look(&node[0].control, 1); /* the port may have changed since the first */
	assert_true(look->again);
	conns_port(&node[0].control, 1, -ENETDOWN, "no link");
	port_look_status = -ENETDOWN;
	assert_true(nodes_until(!look->busy, 500));
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 2);
	port_look_status = 0;
	conns_stop(&node[0].control);
}

static void connections_with_a_gid_that_moved_are_made_anew(void **state)
{
	struct rail_conn *got = connected(1);

	qps_stale_to = UINT32_MAX;
	conns_port_look(&node[0].control, 1);
	assert_int_equal(told(1, 1)->kind, RAIL_CONN_DROP);
	assert_int_equal(rails_out(), 2); /* clients do not wait for it */
	qps_stale_to = 0;
	conns_returned(&node[0].control, 1, got);
	assert_int_equal(told(1, 2)->kind, RAIL_CONN_ADD);
	got = told(1, 2)->object;
	conns_proven(&node[0].control, 1, got);
	assert_int_equal(rails_out(), 0);
	/* The other side's: it has one incoming connection there. */
	assert_int_equal(qps_alive, 4);
	qps_stale_to = UINT32_MAX;
	conns_port_look(&node[1].control, 1);
	assert_true(nodes_until(qps_alive == 2, 500));
	qps_stale_to = 0;
	conns_stop(&node[0].control);
}

static void a_port_without_a_link_serves_no_peer(void **state)
{
	conns_port(&node[1].control, 0, -ENETDOWN, "no link");
	port_look_status = 0;
	node[0].rail[0].tells = 0;
	want(0);
	assert_int_equal(told(0, 0)->kind, RAIL_CONN_REFUSE);
	assert_int_equal(qps_connects, 0); /* refused at once */
	conns_port(&node[1].control, 0, 0, "");
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_ADD); /* the probe, within its back-off */
	conns_proven(&node[0].control, 0, told(0, 1)->object);
	conns_stop(&node[0].control);
}

static void a_port_with_its_link_again_is_probed_without_a_look(void **state)
{
	struct rail_conn *got = connected(1);
	unsigned watches = node[0].control.conns->watches;

	net_timer_stop(node[0].control.conns->watch); /* rails_watch() runs no more */
	conns_port(&node[0].control, 1, -ENETDOWN, "no link");
	assert_int_equal(told(1, 1)->kind, RAIL_CONN_DROP);
	conns_returned(&node[0].control, 1, got);
	conns_port(&node[0].control, 1, 0, "");
	assert_int_equal(told(1, 2)->kind, RAIL_CONN_ADD);
	assert_true(((struct rail_conn *)told(1, 2)->object)->probe);
	assert_int_equal(node[0].control.conns->watches, watches);
	conns_stop(&node[0].control);
}

/*
 * Both rails always have pages of 1 MiB to read; rail 0 completes `times` pages for each page of
 * rail 1.
 */
static void read_unevenly(unsigned times, unsigned ms)
{
	uint64_t until_ns = clock_now_ns() + ms * 1000000ull;

	while (clock_now_ns() < until_ns) {
		for (unsigned r = 0; r < 2; r++) {
			struct fake_rail *fake = &node[0].rail[r];
			unsigned pages = r ? 1 : times;

			fake->in_flight = 1;
			fake->counter[COUNTER_pages_read] += pages;
			fake->counter[COUNTER_bytes_read] += (uint64_t)pages << 20;
		}
		nodes_run(5);
	}
}

static void a_rail_much_slower_than_the_others_rests_and_is_probed(void **state)
{
	struct rail_conn *got = connected(1);
	unsigned peers_out;

	read_unevenly(4, 500);
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 0);
	read_unevenly(20, 700);
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 2);
	assert_string_equal(conns_rail_state(&node[0].control, 1, &peers_out), "slow");
	assert_int_equal(told(1, 1)->kind, RAIL_CONN_DROP);
	conns_returned(&node[0].control, 1, got);
	assert_true(nodes_until(node[0].rail[1].tells == 3, 3000));
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 0);
	assert_int_equal(told(1, 2)->kind, RAIL_CONN_ADD);
	assert_int_equal(rails_out(), 2);
	conns_stop(&node[0].control);
}

static void a_faster_port_gets_more_queue_pairs(void **state)
{
	static const struct {
		uint64_t gbps;
		unsigned qps;
	} ports[] = {{0, 4}, {100, 4}, {200, 5}, {400, 8}, {800, 8}};
	struct control *control = &node[0].control;

	node[0].settings.rail_qps_per_peer = 0;
	for (unsigned i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
		port_bits_per_second = ports[i].gbps * 1000000000;
		assert_int_equal(qps_wanted(control, 0), ports[i].qps);
	}
	node[0].settings.rail_qps_per_peer = 1;
	assert_int_equal(qps_wanted(control, 0), 1);
	port_bits_per_second = 0;
}

/* ---- members whose READs hang ---------------------------------------------------------------- */

static bool is_unread(void)
{
	struct directory_owner owner;
	uint64_t bits = shm_load64(&node[0].control.status->map.suspects[peer() / 64]);

	directory_owner(&node[0].control, peer(), &owner);
	assert_int_equal(bits >> peer() % 64 & 1, suspect_steers(owner.why));
	return owner.why == SUSPECT_UNREAD;
}

/* As the room tells the directory: also while another reason comes before it. 0: not suspect. */
static uint32_t unread(void)
{
	return node[0].control.conns->unread[peer()];
}

/* True if both rails have sent a Connect that has no answer yet. */
static bool asked(void)
{
	const struct out_conn *conn;
	unsigned count = 0;

	LIST_FOREACH (conn, &node[0].control.conns->out_conns, next)
		count += conn->state == OUT_CONN_REQUESTED;
	return count == 2;
}

static void connects_mark(bool linkless, bool gone)
{
	struct out_conn *conn;

	LIST_FOREACH (conn, &node[0].control.conns->out_conns, next)
		if (conn->state == OUT_CONN_REQUESTED) {
			conn->linkless = linkless;
			conn->gone = gone;
		}
}

#define LOOKS 6u /* looks of 50 ms in a tenth of the 3000 ms below */

/* Connections with node 1 on both rails, with cluster.dead_after_ms as users have it. */
static void connected_patiently(struct rail_conn *ret_on[2])
{
	node[0].settings.cluster_dead_after_ms = 3000;
	for (unsigned r = 0; r < 2; r++)
		ret_on[r] = connected(r);
}

/* Runs the nodes until node 0 has looked so often. `complete`: READs of others do before each. */
static void looks(unsigned n, bool complete)
{
	for (; n; n--) {
		unsigned watches = node[0].control.conns->watches;

		node[0].rail[0].counter[COUNTER_pages_read] += complete;
		assert_true(nodes_until(node[0].control.conns->watches != watches, 3000));
	}
}

/* As the rail does: it has a new number, and the connection the same. */
static void stall(struct rail_conn *on, uint32_t number)
{
	node[0].rail[on->rail].stalls += number != 0;
	shm_store(&on->stalled, number);
}

static void both_stall(struct rail_conn *on[2], uint32_t number)
{
	stall(on[0], number);
	stall(on[1], number);
}

static void a_member_is_suspect_while_only_its_reads_hang(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	stall(on[0], 1);
	looks(LOOKS + 1, true);
	assert_false(is_unread()); /* rail 1 reads it */
	stall(on[1], 1);
	looks(LOOKS + 1, false);
	assert_false(is_unread()); /* no READ completes: this engine may be at fault */
	looks(LOOKS, true);
	assert_true(is_unread());
	assert_true(sees(0, 1));
	looks(2, false);
	assert_true(is_unread()); /* also when the others are idle */
	stall(on[1], 0);
	looks(1, false);
	assert_false(is_unread());
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
	conns_stop(&node[0].control);
}

static void a_member_is_suspect_only_after_several_looks_at_one_stall(void **state)
{
	struct rail_conn *on[2];
	uint32_t number = 1;

	connected_patiently(on);
	/* READs complete between the looks: on a busy machine a member may have no processor */
	for (; number < 2 * LOOKS; number++) {
		both_stall(on, number);
		looks(1, true);
		assert_false(is_unread());
	}
	both_stall(on, number);
	looks(LOOKS - 1, true);
	assert_false(is_unread());
	looks(2, false);
	assert_false(is_unread()); /* looks in which nothing completes do not count */
	looks(1, true);
	assert_true(is_unread());
	both_stall(on, number + 1);
	looks(1, true);
	assert_false(is_unread()); /* a READ has completed */
	conns_stop(&node[0].control);
}

static void a_member_is_suspect_after_three_looks_at_least(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	node[0].settings.cluster_dead_after_ms = 1000; /* a tenth has two looks */
	looks(1, true);
	assert_int_equal(unread(), 0);
	both_stall(on, 1);
	looks(2, true);
	assert_int_equal(unread(), 0);
	looks(1, true);
	assert_int_equal(unread(), ref());
	conns_stop(&node[0].control);
}

/* The rail tells the control plane that its connection broke, and returns it at once. */
static void breaks(unsigned rail, struct rail_conn *conn)
{
	node[0].rail[rail].tells = 0;
	conns_broken(&node[0].control, rail, conn, 0);
	assert_int_equal(told(rail, 0)->kind, RAIL_CONN_DROP);
	conns_returned(&node[0].control, rail, conn);
}

/* Ends the back-off after breaks(), or makes it last. */
static void back_off(unsigned rail, bool lasts)
{
	node[0].control.conns->conn_health[rail][peer()].until_ns = lasts ? UINT64_MAX : 0;
}

/* The connection after breaks(), whose probe is posted. */
static struct rail_conn *probing(unsigned rail)
{
	assert_int_equal(told(rail, 1)->kind, RAIL_CONN_ADD);
	return told(rail, 1)->object;
}

static void a_back_off_makes_no_member_suspect(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	for (unsigned times = 0; times < 2; times++) {
		for (unsigned r = 0; r < 2; r++) {
			breaks(r, on[r]);
			back_off(r, true);
		}
		looks(LOOKS + 1, true);
		assert_false(is_unread());
		for (unsigned r = 0; r < 2; r++) {
			back_off(r, false);
			on[r] = probing(r);
		}
		looks(LOOKS + 1, true);
		assert_false(is_unread()); /* no probe is stalled */
		for (unsigned r = 0; r < 2; r++)
			conns_proven(&node[0].control, r, on[r]);
	}
	conns_stop(&node[0].control);
}

static void a_connection_that_breaks_hangs_on_when_its_probe_stalls(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	conns_port(&node[0].control, 0, -ENETDOWN, "no link");
	stall(on[1], 1);
	looks(LOOKS - 1, true);
	breaks(1, on[1]);
	on[1] = probing(1);
	looks(1, true);
	assert_false(is_unread());
	stall(on[1], 2);
	looks(1, true);
	assert_true(is_unread());
	conns_stop(&node[0].control);
}

static void a_connect_without_an_answer_hangs(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	for (unsigned r = 0; r < 2; r++)
		breaks(r, on[r]);
	node[1].stalled = true;
	assert_true(nodes_until(asked(), 3000));
	for (unsigned r = 0; r < 2; r++)
		back_off(r, true);  /* one Connect is enough */
	connects_mark(true, false); /* not sent yet: there is no link */
	looks(LOOKS, true);
	connects_mark(false, true); /* given up: only its queue pairs are still there */
	looks(LOOKS, true);
	connects_mark(false, false);
	looks(LOOKS - 1, true);
	assert_int_equal(unread(), 0);
	looks(1, true);
	assert_int_equal(unread(), ref());
	node[1].stalled = false;
	conns_stop(&node[0].control);
}

static void ports_that_swap_make_no_member_suspect(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	stall(on[0], 1);
	looks(LOOKS, true);
	conns_port(&node[0].control, 0, -ENETDOWN, "no link"); /* our own port 0 has no link */
	conns_returned(&node[0].control, 0, on[0]);
	looks(LOOKS, true); /* READs of the member complete over rail 1 */
	assert_false(is_unread());
	conns_port(&node[0].control, 0, 0, "");
	conns_port(&node[0].control, 1, -ENETDOWN, "no link");
	looks(1, false); /* no READ completes anywhere */
	assert_false(is_unread());
	conns_port(&node[0].control, 0, -ENETDOWN,
		"no link"); /* no rail is in use: that says nothing */
	looks(LOOKS, true);
	assert_false(is_unread());
	conns_stop(&node[0].control);
}

/* Allows or refuses every access to the whole pages of memory between the two addresses. */
static void pages_allow(void *from, void *to, bool allow)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = ((uintptr_t)from + page - 1) / page * page;
	uintptr_t last = (uintptr_t)to / page * page;

	assert_true(first < last);
	assert_int_equal(
		mprotect((void *)first, last - first, allow ? PROT_READ | PROT_WRITE : PROT_NONE),
		0);
}

/* The same for all peers from `first` on, and for a connection of theirs. */
static void peers_allow(unsigned first, struct out_conn *conn, bool allow)
{
	struct conns *conns = node[0].control.conns;

	for (unsigned r = 0; r < RAILS_MAX; r++)
		pages_allow(
			&conns->conn_health[r][first], conns->conn_health[r] + NODES_MAX, allow);
	pages_allow(&conns->unread[first], conns->unread + NODES_MAX, allow);
	pages_allow(conn, (char *)conn + sysconf(_SC_PAGESIZE), allow);
}

/* It would end with SIGSEGV. */
static void a_look_touches_no_peer_and_no_connection_that_is_fine(void **state)
{
	struct conns *conns = node[0].control.conns;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct rail_conn *on[2];
	struct out_conn *fine;

	static_assert(sizeof(struct out_conn) <= 4096, "it fits in a page");
	fine = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(fine, MAP_FAILED);
	connected_patiently(on);
	both_stall(on, 1);
	looks(LOOKS, true); /* the search for new stalls has ended, too */
	assert_int_equal(unread(), ref());
	fine->control = &node[0].control;
	fine->state = OUT_CONN_LIVE;
	fine->handle.peer = NODES_MAX - 1;
	LIST_INSERT_HEAD(&conns->out_conns, fine, next);
	conns->peers = NODES_MAX;
	peers_allow(peer() + 1, fine, false);
	looks(LOOKS, true);
	assert_int_equal(unread(), ref());
	both_stall(on, 0);
	looks(2, true);
	assert_int_equal(unread(), 0);
	assert_true(LIST_EMPTY(&conns->watched));
	peers_allow(peer() + 1, fine, true);
	LIST_REMOVE(fine, next);
	munmap(fine, page);
	conns_stop(&node[0].control);
}

static void a_stall_is_found_that_is_seen_a_look_after_its_number(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	looks(2, true);
	node[0].rail[0].stalls++;
	node[0].rail[1].stalls++;
	looks(1, true);
	shm_store(&on[0]->stalled, 1);
	shm_store(&on[1]->stalled, 1);
	looks(LOOKS, true);
	assert_int_equal(unread(), ref());
	conns_stop(&node[0].control);
}

/* The list of the watch has an entry of it: that is looked at once more. */
static void a_member_that_leaves_while_its_reads_hang_is_forgotten(void **state)
{
	struct rail_conn *on[2];
	uint16_t gone;

	connected_patiently(on);
	both_stall(on, 1);
	looks(LOOKS, true);
	assert_int_equal(unread(), ref());
	gone = peer();
	conns_member_gone(&node[0].control, gone, ref());
	looks(1, true);
	assert_int_equal(node[0].control.conns->unread[gone], 0);
	assert_true(LIST_EMPTY(&node[0].control.conns->watched));
	conns_stop(&node[0].control);
}

static void a_new_connection_ends_the_suspicion(void **state)
{
	struct rail_conn *on[2];

	connected_patiently(on);
	conns_port(&node[0].control, 0, -ENETDOWN, "no link"); /* rail 0 is out: it says nothing */
	stall(on[1], 1);
	looks(LOOKS, true);
	assert_true(is_unread());
	breaks(1, on[1]);
	looks(1, true);
	assert_true(is_unread()); /* in its back-off */
	on[1] = probing(1);
	looks(LOOKS, true);
	assert_true(is_unread()); /* its probe is not answered yet */
	conns_proven(&node[0].control, 1, on[1]);
	looks(1, true);
	assert_false(is_unread());
	conns_stop(&node[0].control);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_watch_without_its_timer_is_refused),
		T(a_faster_port_gets_more_queue_pairs),
		T(a_probe_that_fails_leaves_the_rail_out),
		T(a_port_without_a_link_takes_its_rail_out_at_once),
		T(a_port_with_its_link_again_is_probed_without_a_look),
		T(a_port_that_cannot_be_used_is_looked_at_until_it_can),
		T(a_look_that_began_before_the_link_was_lost_does_not_count),
		T(connections_with_a_gid_that_moved_are_made_anew),
		T(a_port_without_a_link_serves_no_peer),
		T(a_rail_much_slower_than_the_others_rests_and_is_probed),
		T(a_member_is_suspect_while_only_its_reads_hang),
		T(a_member_is_suspect_only_after_several_looks_at_one_stall),
		T(a_member_is_suspect_after_three_looks_at_least),
		T(a_back_off_makes_no_member_suspect),
		T(a_connection_that_breaks_hangs_on_when_its_probe_stalls),
		T(a_connect_without_an_answer_hangs),
		T(ports_that_swap_make_no_member_suspect),
		T(a_new_connection_ends_the_suspicion),
		T(a_look_touches_no_peer_and_no_connection_that_is_fine),
		T(a_stall_is_found_that_is_seen_a_look_after_its_number),
		T(a_member_that_leaves_while_its_reads_hang_is_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
