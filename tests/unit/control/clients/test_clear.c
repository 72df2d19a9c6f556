/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clears that another engine requests: what it may have waiting, in which order they are served,
 * how they end, and what is remembered of the end; and clears of other engines. A node is one
 * control plane in the test's process; it gets to the clears when the test calls clear_turn().
 */
#include "engine/control/clients/ctl_inner.h"
#include "tests/unit/control/agree_world.h"

/* ---- clients of this host, by ld --wrap ------------------------------------------------------ */

static struct ctl_done answer[4]; /* by number of ctl_later() */
static uint32_t laters, answers;
static uint32_t forged_ref; /* not 0: the sender of the next Clear */
/* whose clears have ended, in order: a member that is looked up to be told, 0: a client */
static uint32_t who[256];
static unsigned ended;

static void ended_add(uint32_t ref)
{
	if (ended < 256)
		who[ended++] = ref;
}

uint32_t __wrap_ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages);
uint32_t __wrap_ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages)
{
	(void)ctl, (void)c, (void)op;
	assert_int_equal(pages, 1);
	assert_true(laters < 4);
	return laters++;
}

void __wrap_ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done);
void __wrap_ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done)
{
	(void)ctl;
	assert_true(later < laters);
	answer[later] = *done;
	answers++;
	ended_add(0);
}

struct rpc_link *__real_member_link_now(const struct control *control, uint32_t ref);
struct rpc_link *__wrap_member_link_now(const struct control *control, uint32_t ref);
struct rpc_link *__wrap_member_link_now(const struct control *control, uint32_t ref)
{
	ended_add(ref);
	return __real_member_link_now(control, ref);
}

uint32_t __real_member_link_ref(const struct rpc_link *link);
uint32_t __wrap_member_link_ref(const struct rpc_link *link);
uint32_t __wrap_member_link_ref(const struct rpc_link *link)
{
	return forged_ref ? forged_ref : __real_member_link_ref(link);
}

static int begin(void **state)
{
	laters = answers = forged_ref = ended = 0;
	return setup(state);
}

/* A client of node 0 clears the host of the engine `ref`; 0: its own. */
static void client_clears(uint32_t ref, unsigned ms)
{
	const struct ctl_op op = {.kind = CTL_CLEAR, .count = 1, .ref = ref};

	clear_serve(&node[0].control, NULL, &op, clock_now_ns() + ms * 1000000ull);
}

/* ---- another engine -------------------------------------------------------------------------- */

static void ask(int fd, uint64_t serial)
{
	Pc__Clear body = PC__CLEAR__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.serial = serial;
	body.all = true;
	message.body_case = PC__MESSAGE__BODY_CLEAR;
	message.clear = &body;
	raw_message(fd, &message);
}

static void read_exactly(int fd, uint8_t *ret, size_t bytes)
{
	for (size_t have = 0, more; have < bytes; have += more) {
		more = raw_read(fd, ret + have, bytes - have, 1000);
		assert_true(more > 0);
	}
}

static uint64_t told_pages; /* of the last told() */

/* The result of the next Cleared, which has this serial. */
static uint32_t told(int fd, uint64_t serial)
{
	static uint8_t frame[65536];
	uint32_t length, result = UINT32_MAX;

	while (result == UINT32_MAX) {
		Pc__Message *message;

		read_exactly(fd, (uint8_t *)&length, sizeof(length));
		length = ntohl(length);
		assert_true(length <= sizeof(frame));
		read_exactly(fd, frame, length);
		message = pc__message__unpack(NULL, length, frame);
		assert_non_null(message);
		if (message->body_case == PC__MESSAGE__BODY_CLEARED) {
			assert_int_equal(message->cleared->serial, serial);
			result = message->cleared->result;
			told_pages = message->cleared->pages;
		}
		pc__message__free_unpacked(message, NULL);
	}
	return result;
}

static uint32_t asked(int fd, uint64_t serial)
{
	ask(fd, serial);
	return told(fd, serial);
}

static int join(unsigned n)
{
	char name[16];
	int fd = raw_open(0);

	snprintf(name, sizeof(name), "raw%u", n);
	raw_hello(fd, name, 0x1234567800 + n, 9, NULL);
	assert_true(nodes_until(member_by_ref(&node[0].control, 0x34567800 + n), 1000));
	return fd;
}

static void put(unsigned i, uint64_t number)
{
	const struct index_entry entry = {.key = key_of(number), .generation = 1};

	assert_int_equal(index_put(node[i].control.index, &entry, NULL), 0);
}

static unsigned kept(unsigned i)
{
	return (unsigned)index_count(node[i].control.index);
}

/* Serves what waits. Time stands still meanwhile, as the engines by hand send no heartbeats. */
static void clears_run(unsigned i)
{
	while (clear_turn(&node[i].control))
		;
	nodes_run(5);
}

static void end(int fd)
{
	if (fd >= 0)
		close(fd);
	for (unsigned i = 0; i < NODES; i++)
		if (node[i].open)
			clear_close(&node[i].control);
}

/* Opens node 0, which member 1 joins. Returns the member's connection. */
static int join_first(void)
{
	assert_int_equal(node_open(0, NULL), 0);
	return join(1);
}

/* As many requests as a member may have, 1 to CLEARS_MEMBER_MAX: all wait. */
static void ask_most(int fd)
{
	for (uint64_t serial = 1; serial <= CLEARS_MEMBER_MAX; serial++)
		assert_int_equal(asked(fd, serial), PC__CLEAR_RESULT__CLEAR_GOES_ON);
}

/* A request, and its end: node 0 has nothing left. */
static void clear_done(int fd, uint64_t serial)
{
	assert_int_equal(asked(fd, serial), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	clears_run(0);
	assert_int_equal(told(fd, serial), PC__CLEAR_RESULT__CLEAR_DONE);
}

static void a_member_may_have_some_clears_waiting_and_a_repeated_one_is_no_new_one(void **state)
{
	int fd = join_first();

	(void)state;
	ask_most(fd);
	assert_int_equal(asked(fd, CLEARS_MEMBER_MAX + 1), PC__CLEAR_RESULT__CLEAR_BUSY);
	assert_int_equal(asked(fd, 1), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	close(fd);
	clear_close(&node[0].control);
}

static void all_members_together_may_have_half_of_the_requests(void **state)
{
	int fd[CLEARS_MEMBERS_MAX / CLEARS_MEMBER_MAX + 1];
	unsigned last = CLEARS_MEMBERS_MAX / CLEARS_MEMBER_MAX;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned n = 0; n < last; n++) {
		fd[n] = join(n + 1);
		ask_most(fd[n]);
	}
	fd[last] = join(last + 1);
	assert_int_equal(asked(fd[last], 1), PC__CLEAR_RESULT__CLEAR_BUSY);
	for (unsigned n = 0; n <= last; n++)
		close(fd[n]);
	clear_close(&node[0].control);
}

static void a_clear_without_a_serial_ends_the_link(void **state)
{
	int fd = join_first();

	(void)state;
	ask(fd, 0);
	assert_true(raw_closed(fd, 1000));
	close(fd);
	assert_null(node[0].control.clears);
}

static void a_repeat_that_crosses_the_last_answer_removes_nothing(void **state)
{
	int fd = join_first();

	(void)state;
	put(0, 1);
	clear_done(fd, 1);
	assert_int_equal(told_pages, 1);
	assert_int_equal(kept(0), 0);
	put(0, 2);
	assert_int_equal(asked(fd, 1), PC__CLEAR_RESULT__CLEAR_DONE);
	assert_int_equal(told_pages, 1);
	clears_run(0);
	assert_int_equal(kept(0), 1);
	clear_done(fd, 2);
	assert_int_equal(kept(0), 0);
	end(fd);
}

static void what_the_disk_did_not_record_is_told_on_the_next_link(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	node[0].forget = FORGET_VOLATILE;
	fd = join(1);
	put(0, 1);
	assert_int_equal(asked(fd, 1), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	close(fd);
	assert_true(nodes_until(!member_link_now(&node[0].control, 0x34567801), 1000));
	clears_run(0);
	assert_int_equal(kept(0), 0);
	node[0].forget = FORGET_DURABLE;
	fd = join(1);
	assert_true(nodes_until(member_link_now(&node[0].control, 0x34567801), 1000));
	assert_int_equal(asked(fd, 1), PC__CLEAR_RESULT__CLEAR_VOLATILE);
	assert_int_equal(told_pages, 1);
	end(fd);
}

static void a_request_whose_end_is_forgotten_is_refused(void **state)
{
	int fd = join_first();

	(void)state;
	for (uint64_t serial = 1; serial <= CLEARS_MEMBER_MAX + 1; serial++)
		clear_done(fd, serial);
	put(0, 1);
	assert_int_equal(asked(fd, 2), PC__CLEAR_RESULT__CLEAR_DONE);
	assert_int_equal(asked(fd, 1), PC__CLEAR_RESULT__CLEAR_BUSY);
	clears_run(0);
	assert_int_equal(kept(0), 1);
	end(fd);
}

static void a_request_that_was_refused_stays_refused(void **state)
{
	int fd = join_first();

	(void)state;
	ask_most(fd);
	assert_int_equal(asked(fd, 1000), PC__CLEAR_RESULT__CLEAR_BUSY);
	clears_run(0);
	for (uint64_t serial = 1; serial <= CLEARS_MEMBER_MAX; serial++)
		assert_int_equal(told(fd, serial), PC__CLEAR_RESULT__CLEAR_DONE);
	assert_int_equal(asked(fd, 1000), PC__CLEAR_RESULT__CLEAR_BUSY);
	end(fd);
}

/* Engines that have left and ask once each do not make the node forget a member. */
static void engines_that_have_left_are_forgotten_first(void **state)
{
	struct control *control = &node[0].control;
	Pc__Clear m = PC__CLEAR__INIT;
	struct rpc_link *link;
	int fd = join_first();

	(void)state;
	clear_done(fd, 1);
	link = member_link_now(control, 0x34567801);
	assert_non_null(link);
	m.serial = 7;
	for (forged_ref = 1; forged_ref <= CLEAR_MEMBERS_MAX + 100; forged_ref++)
		assert_true(clear_serve_member(control, link, &m));
	forged_ref = 0;
	nodes_run(20);
	put(0, 1);
	for (unsigned n = 0; n < CLEAR_MEMBERS_MAX + 100; n++)
		assert_int_equal(told(fd, 7), n < CLEARS_MEMBERS_MAX
						      ? PC__CLEAR_RESULT__CLEAR_GOES_ON
						      : PC__CLEAR_RESULT__CLEAR_BUSY);
	assert_int_equal(asked(fd, 1), PC__CLEAR_RESULT__CLEAR_DONE);
	end(fd);
}

static void clients_of_this_host_come_first_and_then_members_in_turn(void **state)
{
	const uint32_t want[] = {0x34567801, 0, 0, 0x34567802, 0x34567801, 0x34567801};
	int fd = join_first(), other = join(2);

	(void)state;
	for (uint64_t serial = 1; serial <= 3; serial++)
		assert_int_equal(asked(fd, serial), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	assert_int_equal(asked(other, 1), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	assert_int_equal(clear_turn(&node[0].control), 1);
	client_clears(0, 60000);
	client_clears(node[0].control.ref, 60000);
	ended = 0;
	clears_run(0);
	assert_int_equal(answers, 2);
	assert_int_equal(answer[0].status, OP_HIT);
	assert_int_equal(ended, 6);
	assert_memory_equal(who, want, sizeof(want));
	close(other);
	end(fd);
}

/* ---- this node asks another one -------------------------------------------------------------- */

/* Two nodes that see each other. `dead_after_ms`: of both. */
static uint32_t pair_open(int dead_after_ms)
{
	nodes_setup(20, dead_after_ms);
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	return node[1].control.ref;
}

static void a_client_is_told_what_the_other_host_did(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 2; round++) {
		uint32_t ref = round ? node[1].control.ref : pair_open(300);

		node[1].forget = round ? FORGET_VOLATILE : FORGET_DURABLE;
		put(1, 1);
		client_clears(ref, 60000);
		assert_true(nodes_until((clear_turn(&node[1].control), answers > round), 3000));
		assert_int_equal(answer[round].length, round ? CLEARED_VOLATILE : CLEARED_ALL);
		assert_int_equal(answer[round].place, 1);
		assert_int_equal(kept(1), 0);
	}
	end(-1);
}

/* A warm restart keeps the ref, and the other host remembers the answers to the life before. */
static void what_a_later_life_asks_is_no_repeat(void **state)
{
	uint32_t ref = pair_open(300);

	(void)state;
	for (unsigned life = 0; life < 2; life++) {
		put(1, 1);
		client_clears(ref, 60000);
		assert_true(nodes_until((clear_turn(&node[1].control), answers > life), 3000));
		assert_int_equal(answer[life].length, CLEARED_ALL);
		assert_int_equal(kept(1), 0);
		clear_close(&node[0].control);
		node[0].control.incarnation += 1ull << 32;
	}
	end(-1);
}

static void a_host_that_leaves_is_gone(void **state)
{
	uint32_t ref = pair_open(300);

	(void)state;
	client_clears(ref, 60000);
	nodes_run(50);
	assert_int_equal(answers, 0);
	clear_close(&node[1].control);
	node_close(1);
	assert_true(nodes_until(answers, 5000));
	assert_int_equal(answer[0].length, CLEARED_GONE);
	end(-1);
}

/* It may come back with pages: only a clear of the cluster is told so. */
static void a_host_that_left_is_away_until_it_is_back(void **state)
{
	uint32_t ref = pair_open(300), own = node[0].control.ref;

	(void)state;
	assert_true(nodes_until(!removals_missing(&node[0].control), 3000));
	client_clears(own, 60000);
	clears_run(0);
	assert_int_equal(answer[0].length, CLEARED_ALL);
	clear_close(&node[1].control);
	node_close(1);
	assert_true(nodes_until(!member_by_ref(&node[0].control, ref), 5000));
	client_clears(own, 60000);
	client_clears(0, 60000);
	clears_run(0);
	assert_int_equal(answers, 3);
	assert_int_equal(answer[1].status, OP_HIT);
	assert_int_equal(answer[1].length, CLEARED_AWAY);
	assert_int_equal(answer[2].length, CLEARED_ALL);
	/* it comes back after the clear began: it was not asked */
	client_clears(own, 60000);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree() && !removals_missing(&node[0].control), 5000));
	clears_run(0);
	assert_int_equal(answer[3].length, CLEARED_AWAY);
	end(-1);
}

static void a_silent_host_is_named_after_ten_seconds(void **state)
{
	uint32_t ref = pair_open(60000);
	uint64_t began_ns = clock_now_ns();

	(void)state;
	node[1].stalled = true;
	client_clears(ref, 60000);
	assert_true(nodes_until(answers, 12000));
	assert_int_equal(answer[0].length, CLEARED_SILENT);
	assert_true(clock_now_ns() - began_ns >= 10000000000ull);
	end(-1);
}

static void a_pause_of_this_engine_makes_no_host_silent(void **state)
{
	uint32_t ref = pair_open(60000);

	(void)state;
	client_clears(ref, 60000);
	nodes_run(50);
	nodes_pass(15000);
	nodes_run(50);
	assert_int_equal(answers, 0);
	assert_true(nodes_until((clear_turn(&node[1].control), answers), 3000));
	assert_int_equal(answer[0].length, CLEARED_ALL);
	/* nor does one in which the deadline passes */
	client_clears(ref, 10000);
	nodes_pass(15000);
	assert_true(nodes_until((clear_turn(&node[1].control), answers == 2), 3000));
	assert_int_equal(answer[1].length, CLEARED_ALL);
	end(-1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_member_may_have_some_clears_waiting_and_a_repeated_one_is_no_new_one),
		T(all_members_together_may_have_half_of_the_requests),
		T(a_clear_without_a_serial_ends_the_link),
		T(a_repeat_that_crosses_the_last_answer_removes_nothing),
		T(what_the_disk_did_not_record_is_told_on_the_next_link),
		T(a_request_whose_end_is_forgotten_is_refused),
		T(a_request_that_was_refused_stays_refused),
		T(engines_that_have_left_are_forgotten_first),
		T(clients_of_this_host_come_first_and_then_members_in_turn),
		T(a_client_is_told_what_the_other_host_did),
		T(what_a_later_life_asks_is_no_repeat),
		T(a_host_that_leaves_is_gone),
		T(a_host_that_left_is_away_until_it_is_back),
		T(a_silent_host_is_named_after_ten_seconds),
		T(a_pause_of_this_engine_makes_no_host_silent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
