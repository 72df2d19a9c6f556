/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines that do not fit together refuse each other, and both log the reason once: different
 * settings, a loopback address that others cannot reach, a name that is taken. A node is one
 * control plane in the test's process.
 */
#include "tests/unit/control/agree_world.h"

/* The engines that node `i` reports as refused, or as refusing it. */
static struct refusals_report refusals(unsigned i)
{
	struct refusals_report found;

	refusals_report(&node[i].control, net_now(), &found);
	return found;
}

/* Node 1 has node 0 as its seed. Each must refuse the other and log the given text exactly once. */
static void expect_both_refuse(const char *at_0, const char *at_1)
{
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(lines_with(at_0, "", "") && lines_with(at_1, "", ""), 2000));
	nodes_run(3000); /* long enough for dozens of attempts to dial */
	expect_lines(1, at_0, "", "");
	expect_lines(1, at_1, "", "");
	for (unsigned i = 0; i < 2; i++) {
		assert_true(sees_count(i, 1));
		assert_int_equal(node[i].control.counter[COUNTER_members_joined], 0);
		assert_int_equal(node[i].control.counter[COUNTER_messages_bad], 0);
		assert_int_equal(refusals(i).engines, 1);
		assert_false(refusals(i).engine[0].theirs);
		assert_non_null(strstr(refusals(i).engine[0].text, i ? at_1 : at_0));
		assert_true(refusals(i).engine[0].ms > 2000);
		assert_true(node[i].control.counter[COUNTER_members_refused] > 2);
	}
}

/* ---- settings -------------------------------------------------------------------------------- */

static void another_number_of_replicas_is_refused_by_both_with_both_values(void **state)
{
	node[1].settings.cluster_replicas = 1;
	expect_both_refuse(
		"cluster.replicas = 1 there, 2 here", "cluster.replicas = 2 there, 1 here");
}

static void another_cluster_is_refused_by_both_with_both_names(void **state)
{
	strcpy(node[1].settings.cluster_id, "blue");
	node[1].settings.cluster_replicas = 4;
	expect_both_refuse(
		"cluster.id = blue there, default here; cluster.replicas = 4 there, 2 here",
		"cluster.id = default there, blue here; cluster.replicas = 2 there, 4 here");
}

static void an_engine_joins_after_its_settings_are_made_equal(void **state)
{
	node[1].settings.cluster_replicas = 1;
	expect_both_refuse("= 1 there", "= 2 there");
	node_close(1);
	node[1].settings.cluster_replicas = 2;
	assert_int_equal(refusals(0).engines, 1);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	assert_int_equal(refusals(0).engines, 0);
	assert_int_equal(refusals(1).engines, 0);
}

static void a_refusal_lasts_as_long_as_it_repeats(void **state)
{
	struct members *members;
	struct refusals_report found;
	uint64_t last_ns;

	node[1].settings.cluster_replicas = 1;
	expect_both_refuse("= 1 there", "= 2 there");
	node_close(1);
	members = node[0].control.members;
	last_ns = members->refusal[0].last_ns;
	refusals_report(&node[0].control, last_ns + REFUSAL_LASTS_NS - 1, &found);
	assert_int_equal(found.engines, 1);
	refusals_report(&node[0].control, last_ns + REFUSAL_LASTS_NS, &found);
	assert_int_equal(found.engines, 0);
	members->refusal[0].gap_ns = REFUSAL_LASTS_NS; /* it tries seldom */
	refusals_report(&node[0].control, last_ns + 2 * REFUSAL_LASTS_NS, &found);
	assert_int_equal(found.engines, 1);
}

/* The reason comes from the network: it may be long and contain any bytes. */
static void a_reason_of_another_engine_is_bounded_and_printable(void **state)
{
	char reason[4 * REFUSAL_BYTES];
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	int fd;

	assert_int_equal(node_open(0, NULL), 0);
	memset(reason, '\x1b', sizeof(reason) - 1);
	reason[sizeof(reason) - 1] = '\0';
	member_agree_say(&node[0].control, &hello);
	self.name = "raw";
	self.incarnation = 0x1234567890;
	self.address = "127.0.0.1";
	self.port = 9;
	self.rails = 1;
	hello.self = &self;
	hello.refusal = reason;
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	fd = raw_open(0);
	raw_message(fd, &message);
	assert_true(raw_closed(fd, 1000));
	close(fd);
	expect_lines(1, "refuses this engine", "\"????", "");
	assert_null(strchr(said, '\x1b'));
	assert_int_equal(refusals(0).engines, 1);
	assert_true(refusals(0).engine[0].theirs);
	assert_int_equal(strlen(refusals(0).engine[0].text), REFUSAL_BYTES - 1);
	assert_true(sees_count(0, 1));
}

/*
 * A third engine that is refused does not separate the two others, and they do not gossip about it.
 */
static void a_refused_engine_does_not_separate_the_others(void **state)
{
	node[2].settings.cluster_replicas = 3;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(sees(0, 1) && sees(1, 0), 2000));
	nodes_run(1000);
	assert_true(sees_count(0, 2) && sees_count(1, 2) && sees_count(2, 1));
	assert_int_equal(node[1].control.counter[COUNTER_members_refused], 0);
}

/* The values' text in a Hello comes from the network: it may contain any bytes. */
static void values_with_unprintable_characters_are_not_logged(void **state)
{
	char long_text[4 * AGREED_BYTES_MAX], *agreed[2 * AGREED_ENTRIES_MAX];
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	int fd;

	assert_int_equal(node_open(0, NULL), 0);
	memset(long_text, 'x', sizeof(long_text) - 1);
	long_text[sizeof(long_text) - 1] = '\0';
	memcpy(long_text, "cluster.id = ", 13);
	for (unsigned i = 0; i < 2 * AGREED_ENTRIES_MAX; i++)
		agreed[i] = "filler = 1";
	agreed[0] = "cluster.replicas = \x1b[2J";
	agreed[1] = long_text;
	agreed[2] = "";
	agreed[2 * AGREED_ENTRIES_MAX - 1] = "cluster.id = late";
	self.name = "raw";
	self.incarnation = 0x1234567890;
	self.address = "127.0.0.1";
	self.port = 9;
	self.rails = 1;
	hello.version = WIRE_VERSION;
	hello.self = &self;
	hello.agreed_hash = 1;
	hello.n_agreed = 2 * AGREED_ENTRIES_MAX;
	hello.agreed = agreed;
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	fd = raw_open(0);
	raw_message(fd, &message);
	assert_true(raw_closed(fd, 1000));
	close(fd);
	expect_lines(1, "cluster.id = unknown there", "cluster.replicas = unknown there", "");
	assert_null(strchr(said, '\x1b'));
	assert_null(strstr(said, "xxxx"));
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* Opens a raw connection to node 0 and marks it there as coming from another host. */
static int raw_open_far(void)
{
	int fd = raw_open(0);

	assert_true(nodes_until(!LIST_EMPTY(&node[0].control.rpc->links), 1000));
	LIST_FIRST(&node[0].control.rpc->links)->far = true;
	return fd;
}

static void a_loopback_address_from_another_host_is_refused_with_the_fix(void **state)
{
	assert_int_equal(node_open(0, NULL), 0);
	/* makes node 0 act as if it listened on a network address */
	node[0].control.rpc->loopback = false;
	strcpy(node[0].settings.cluster_address, "10.9.8.7");
	for (unsigned dials = 0; dials < 5; dials++) {
		int fd = raw_open_far();

		raw_hello(fd, "raw", 0x1234567890, 9, NULL);
		assert_int_equal(hello_version(fd), WIRE_VERSION);
		assert_true(raw_closed(fd, 1000));
		close(fd);
	}
	expect_lines(1, "cluster.address is 127.0.0.1 there and 10.9.8.7 here",
		"Set cluster.address there", "127.0.0.1");
	assert_int_equal(node[0].control.counter[COUNTER_members_joined], 0);
	assert_int_equal(node[0].control.counter[COUNTER_members_refused], 5);
}

static void an_engine_on_a_loopback_address_refuses_other_hosts(void **state)
{
	int fd;

	assert_int_equal(node_open(0, NULL), 0);
	fd = raw_open_far();
	raw_hello(fd, "raw", 0x1234567890, 9, NULL);
	assert_true(raw_closed(fd, 1000));
	close(fd);
	expect_lines(1, "cluster.address is 127.0.0.1 there and 127.0.0.1 here",
		"Set cluster.address on both", "");
	assert_int_equal(node[0].control.counter[COUNTER_members_joined], 0);
}

static void gossip_of_loopback_addresses_is_ignored(void **state)
{
	Pc__Member local = PC__MEMBER__INIT;
	char seed[32];
	uint16_t port;
	int listener = listen_raw(&port), fd;

	assert_int_equal(node_open(0, NULL), 0);
	local.name = "local";
	local.incarnation = 0x9999;
	local.address = "127.0.0.1";
	local.port = port;
	local.rails = 1;
	fd = raw_open(0);
	raw_hello(fd, "raw", 0x1234567890, 9, &local);
	assert_true(nodes_until(sees_count(0, 2), 1000));
	/* node 0 dials a loopback address from gossip, because both engines are on one host */
	close(accept_raw(listener));
	close(fd);
	node_close(0);
	assert_int_equal(node_open(0, NULL), 0);
	node[0].control.rpc->loopback = false;
	assert_true(nodes_until(sees_count(0, 1), 1000));
	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	(void)member_learn_all(&node[0].control, NULL, 1, (Pc__Member *[]){&local});
	nodes_run(500);
	assert_int_equal(accept4(listener, NULL, NULL, SOCK_NONBLOCK), -1);
	close(listener);
}

static void loopback_addresses_are_recognised(void **state)
{
	static const char *const loopback[] = {
		"127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1", "localhost", "LocalHost"};
	static const char *const other[] = {
		"128.0.0.1", "10.0.0.1", "126.255.255.255", "::2", "::ffff:10.0.0.1", "host-a"};

	for (unsigned i = 0; i < 6; i++) {
		assert_true(address_text_loopback(loopback[i]));
		assert_false(address_text_loopback(other[i]));
	}
}

/*
 * Debian gives a host's own name an address in 127.0.0.0/8, which the engines of this host can use.
 */
static void engines_of_one_host_may_use_its_name(void **state)
{
	char name[NAME_BYTES_MAX] = "";

	gethostname(name, sizeof(name) - 1);
	for (unsigned i = 0; i < 2; i++)
		strcpy(node[i].settings.cluster_address, name);
	if (node_open(0, NULL) < 0 || !node[0].control.rpc->loopback ||
		address_text_loopback(name)) {
		print_message("\"%s\" does not stand for a loopback address here\n", name);
		skip();
	}
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

/* Both have soft.link = shm, and are on different hosts. */
static void shared_memory_that_does_not_reach_is_refused_by_both_with_the_fix(void **state)
{
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	node[0].control.members->agreed.links = 1;
	node[1].control.members->agreed.links = 2;
	assert_true(nodes_until(refusals(0).engines && refusals(1).engines, 3000));
	expect_lines(2, "soft.link = shm there and here", "on another host", "soft.link = tcp");
	assert_true(sees_count(0, 1) && sees_count(1, 1));
}

/* Links of different kinds are refused, whatever the hosts. */
static void rails_of_another_kind_are_refused_by_both_with_both_kinds(void **state)
{
	static const struct {
		const char *device;
		int link;
	} other[] = {{"soft", LINK_SHM}, {"mlx5_0", LINK_TCP}};

	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
		node[i].control.plan.rails = 1;
		strcpy(node[i].control.plan.rail[0].device, i ? "soft" : other[0].device);
		node[i].settings.soft_link = i ? LINK_TCP : other[0].link;
		member_agree_open(&node[i].control);
	}
	assert_true(nodes_until(refusals(0).engines && refusals(1).engines, 3000));
	expect_lines(1, "soft.link) = soft over tcp there, soft over shm here", "", "");
	expect_lines(1, "soft.link) = soft over shm there, soft over tcp here", "", "");
	strcpy(node[0].control.plan.rail[0].device, other[1].device);
	node[0].settings.soft_link = other[1].link;
	member_agree_open(&node[0].control);
	assert_true(nodes_until(
		lines_with("soft.link) = soft over tcp there, RDMA here", "", "") == 1, 6000));
	node[0].control.plan.rail[0].device[0] = 's';
	strcpy(node[0].control.plan.rail[0].device, "soft");
	member_agree_open(&node[0].control);
	assert_true(nodes_until(all_agree(), 6000));
	assert_int_equal(refusals(0).engines, 0);
}

/* Node 0 has none: nodes with any links may come, but those of one kind only. */
static void an_engine_without_rails_takes_the_links_of_the_first_that_has_some(void **state)
{
	static const int link[] = {LINK_TCP, LINK_TCP, LINK_SHM};

	node[0].bare = true;
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
		node[i].control.plan.rails = i != 0;
		strcpy(node[i].control.plan.rail[0].device, "soft");
		node[i].settings.soft_link = link[i];
		member_agree_open(&node[i].control);
		if (i == 1)
			assert_true(nodes_until(sees(0, 1) && sees(1, 0), 3000));
	}
	assert_true(nodes_until(refusals(0).engines && refusals(2).engines, 3000));
	expect_lines(2, "soft.link) = soft over shm there, soft over tcp here", "", "");
	assert_true(sees_count(0, 2) && sees_count(1, 2) && sees_count(2, 1));
	/* without the first one, the other kind is as good */
	node_close(1);
	assert_true(nodes_until(sees(0, 2) && sees(2, 0), 9000));
}

/* ---- names ----------------------------------------------------------------------------------- */

static void a_name_that_is_taken_is_logged_once_by_both(void **state)
{
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, NULL), 0);
	strcpy(node[1].control.name, "node-0");
	assert_true(member_text_set(&node[1].control.members->self->record, "node-0", "127.0.0.1",
		node[1].control.members->self->record.port));
	for (unsigned dials = 0; dials < 5; dials++) {
		struct rpc_dial *dial = rpc_dial_start(
			&node[1].control, &(struct rpc_target){.host = "127.0.0.1",
						  .port = (uint16_t)node[0].settings.cluster_port,
						  .base_ms = 1,
						  .max_ms = 2,
						  .owner = &node[1].control.members->seed[0],
						  .seed = true});

		nodes_run(50);
		rpc_dial_stop(dial);
	}
	expect_lines(2, "this engine's name, node-0", "Set another engine.name", "");
}

/* Node 0 refuses node 2, whose name is that of node 1, and tells it so; node 1 is not harmed. */
static void an_engine_whose_name_a_third_one_has_learns_why_it_is_refused(void **state)
{
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(sees(0, 1) && sees(1, 0), 2000));
	assert_int_equal(node_open(2, node_at(0)), 0);
	strcpy(node[2].control.name, "node-1");
	assert_true(member_text_set(&node[2].control.members->self->record, "node-1", "127.0.0.1",
		node[2].control.members->self->record.port));
	assert_true(nodes_until(refusals(2).engines && refusals(0).engines, 3000));
	assert_true(refusals(2).engine[0].theirs);
	assert_non_null(strstr(refusals(2).engine[0].text, "its name, node-1"));
	assert_non_null(strstr(refusals(0).engine[0].text, "Set another engine.name"));
	nodes_run(1000);
	assert_true(refusals(0).engines && refusals(2).engines);
	assert_true(sees_count(0, 2) && sees_count(1, 2) && sees_count(2, 1));
	expect_lines(1, "refuses this engine", "its name, node-1", "");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(another_number_of_replicas_is_refused_by_both_with_both_values),
		T(another_cluster_is_refused_by_both_with_both_names),
		T(an_engine_joins_after_its_settings_are_made_equal),
		T(a_refusal_lasts_as_long_as_it_repeats),
		T(a_reason_of_another_engine_is_bounded_and_printable),
		T(a_refused_engine_does_not_separate_the_others),
		T(values_with_unprintable_characters_are_not_logged),
		T(a_loopback_address_from_another_host_is_refused_with_the_fix),
		T(an_engine_on_a_loopback_address_refuses_other_hosts),
		T(gossip_of_loopback_addresses_is_ignored),
		T(loopback_addresses_are_recognised),
		T(shared_memory_that_does_not_reach_is_refused_by_both_with_the_fix),
		T(rails_of_another_kind_are_refused_by_both_with_both_kinds),
		T(an_engine_without_rails_takes_the_links_of_the_first_that_has_some),
		T(engines_of_one_host_may_use_its_name),
		T(a_name_that_is_taken_is_logged_once_by_both),
		T(an_engine_whose_name_a_third_one_has_learns_why_it_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
