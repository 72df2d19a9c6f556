/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs that do not release memory: what proves that a buffer is not written any more, what stays
 * lost, and when the engine aborts. A node is one control plane in the test's process.
 */
#include "tests/unit/control/conns/conn_world.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/control_inner.h"

static struct control *control;

static int open_nodes(void **state)
{
	control = &node[0].control;
	if (setup(state))
		return -1;
	strcpy(control->plan.rail[0].device, "mlx5_0");
	return 0;
}

static void ends(unsigned rail, struct rail_conn *got)
{
	conns_returned(control, rail, got);
	conns_stop(control);
	conns_stop(&node[1].control);
	assert_true(nodes_until(qps_alive == 0, 500));
}

/* ---- what proves that the NIC has stopped ---------------------------------------------------- */

static void a_connection_that_cannot_be_put_in_error_is_destroyed_and_then_retired(void **state)
{
	struct rail_conn *got = connected(0);

	qp_error_status = -EIO;
	conns_broken(control, 0, got, 0);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	conns_stuck(control, 0, got, clock_now_ns());
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_RETIRE);
	assert_ptr_equal(told(0, 2)->object, got);
	assert_int_equal(qps_errors, 2);
	/* Node 0 has killed both queue pairs before it sent RAIL_CONN_RETIRE */
	assert_int_equal(qps_kills, 2);
	/* the handles of the QPs are not freed: the rail may still use them */
	assert_int_equal(qps_alive, 4);
	assert_int_equal(conns_outstanding(control), 1);
	ends(0, got);
}

/*
 * The port has gone down and the member has left, but the rail has not read the command yet, so it
 * may still post.
 */
static void no_queue_pair_is_destroyed_before_the_rail_reports_that_it_has_stopped_posting(
	void **state)
{
	struct rail_conn *got = connected(0);
	struct out_conn *conn = got->control;

	qp_error_status = -EIO;
	node[0].rail[0].full = true;
	conns_qp_failed(control, 0, dv_qp_number(conn->qps.set.qp[1]), "QP fatal");
	nodes_run(500);
	assert_int_equal(qps_errors, 2);
	assert_int_equal(qps_kills, 0);
	node[0].rail[0].full = false;
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	/* RAIL_CONN_RETIRE was sent, but the rail has not executed it in this time */
	nodes_run(500);
	assert_int_equal(qps_kills, 0);
	conns_stuck(control, 0, got, clock_now_ns());
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_RETIRE);
	assert_int_equal(qps_kills, 2);
	ends(0, got);
}

static void a_connection_that_does_not_drain_is_destroyed_and_then_retired(void **state)
{
	struct rail_conn *got = connected(0);

	conns_broken(control, 0, got, 0);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	nodes_run(500);
	assert_int_equal(qps_kills, 0);
	conns_stuck(control, 0, got, clock_now_ns());
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_RETIRE);
	assert_int_equal(qps_kills, 2);
	/* rail 0 is not out of use, because its NIC works */
	assert_int_equal(shm_load(&control->status->rails_out), 0);
	ends(0, got);
	/* the engine does not abort later either, because the rail has retired the connection */
	nodes_run(8000);
}

static void eio_is_no_proof_that_the_nic_stopped_but_a_closed_device_is(void **state)
{
	struct rail_conn *got = connected(0);

	qp_kill_status = -EIO;
	conns_broken(control, 0, got, 0);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	conns_stuck(control, 0, got, clock_now_ns());
	assert_int_equal(told(0, 2)->kind, RAIL_LOST);
	nodes_run(1000);
	/* RAIL_CONN_RETIRE is not among the three commands that the rail was sent */
	assert_int_equal(node[0].rail[0].tells, 3);
	/* the device is not closed: the rail still polls its queues */
	assert_int_equal(device_cuts, 0);
	conns_quiet(control, 0);
	regions_retried = 0;
	assert_int_equal(told(0, 3)->kind, RAIL_CONN_RETIRE);
	assert_int_equal(device_cuts, 1);
	assert_int_equal(regions_retried, 1);
	ends(0, got);
}

static void a_connection_that_drains_meanwhile_is_destroyed_once(void **state)
{
	struct rail_conn *got = connected(0);

	conns_broken(control, 0, got, 0);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	conns_stuck(control, 0, got, clock_now_ns());
	/* the rail returns the connection: its completions arrived after all */
	conns_returned(control, 0, got);
	/* and the other side, told of it, destroys its own, perhaps within the same turn */
	assert_true(nodes_until(qps_alive <= 2, 10000));
	assert_int_equal(node[0].rail[0].tells, 2);
	conns_stop(control);
}

/* ---- lost ------------------------------------------------------------------------------------ */

static void a_software_nic_that_died_is_closed_and_stays_lost(void **state)
{
	struct rail_conn *got = connected(1);
	unsigned peers_out;

	rail_lost(control, 1, "local catastrophic error");
	rail_lost(control, 1, "said twice");
	assert_int_equal(shm_load(&control->status->rails_out), 2);
	assert_string_equal(conns_rail_state(control, 1, &peers_out), "lost");
	assert_int_equal(told(1, 1)->kind, RAIL_LOST);
	conns_quiet(control, 1);
	assert_int_equal(told(1, 2)->kind, RAIL_CONN_RETIRE);
	/* the control plane made no driver call on the lost NIC's queue pairs */
	assert_int_equal(qps_errors + qps_kills, 0);
	conns_returned(control, 1, got);
	conns_port(control, 1, -ENETDOWN, "no link");
	/* reports that the port has its link again, as after the kernel has reset the device */
	conns_port(control, 1, 0, "");
	want(1);
	assert_int_equal(told(1, 3)->kind, RAIL_CONN_REFUSE);
	nodes_run(3 * CONN_BACKOFF_MAX_MS);
	assert_int_equal(shm_load(&control->status->rails_out), 2);
	/* the rail gets no further command, so no probe was made */
	assert_int_equal(node[0].rail[1].tells, 4);
	assert_string_equal(conns_rail_state(control, 1, &peers_out), "lost");
	assert_string_equal(conns_rail_state(control, 0, &peers_out), "up");
	conns_stop(control);
}

static const char *state_of(unsigned rail)
{
	unsigned peers_out;

	return conns_rail_state(control, rail, &peers_out);
}

/* The rail is lost, and has returned all that it had. */
static void loses(unsigned rail)
{
	unsigned cuts = device_cuts;

	rail_lost(control, rail, "local catastrophic error");
	conns_quiet(control, rail);
	assert_true(nodes_until(device_cuts == cuts + 1, 500));
	assert_true(nodes_until(control->conns->health[rail].cut, 500));
}

static void a_nic_is_opened_anew_when_it_is_back_and_all_memory_is_registered(void **state)
{
	struct fake_rail *fake = &node[0].rail[1];

	nics_come_back = true;
	__atomic_store_n(&reopen_status, -ENODEV, __ATOMIC_SEQ_CST);
	loses(1);
	assert_true(nodes_until(stub_count(REOPENS) >= 3, 10000));
	assert_string_equal(state_of(1), "lost");
	assert_string_equal(conns_rail_why(control, 1), "a stub said no");
	assert_int_equal(shm_load(&control->status->rails_out), 2);
	renew_left = 2; /* clients' memory */
	fake->tells = 0;
	__atomic_store_n(&reopen_status, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(
		control->conns->health[1].attempt && control->conns->health[1].attempt->returned,
		2000));
	nodes_run(500);
	assert_string_equal(state_of(1), "lost");
	assert_int_equal(fake->tells, 0);
	renew_left = 0;
	assert_int_equal(told(1, 0)->kind, RAIL_FOUND);
	assert_string_equal(state_of(1), "up");
	assert_string_equal(conns_rail_why(control, 1), "");
	assert_int_equal(shm_load(&control->status->rails_out), 0);
	assert_int_equal(control->counter[COUNTER_rails_found], 1);
	/* peers get the keys of now */
	assert_int_equal(control->rail[1].exported[0].rkey, 4711);
	assert_int_equal(device_cuts, 1);
	connected(1);
	conns_stop(control);
	conns_returned(control, 1, &LIST_FIRST(&control->conns->out_conns)->handle);
	conns_stop(&node[1].control);
	assert_true(nodes_until(qps_alive == 0, 500));
}

static void a_nic_is_not_opened_before_its_connections_are_freed(void **state)
{
	struct rail_conn *got = connected(1);

	nics_come_back = true;
	loses(1);
	nodes_run(3000);
	assert_int_equal(stub_count(REOPENS), 0);
	conns_returned(control, 1, got);
	assert_true(nodes_until(shm_load(&control->status->rails_out) == 0, 2000));
	conns_stop(control);
	assert_true(nodes_until(LIST_EMPTY(&control->conns->out_conns), 500) ||
		    conns_outstanding(control));
	conns_stop(&node[1].control);
	assert_true(nodes_until(qps_alive == 0, 500));
}

static void a_nic_that_does_not_come_back_whole_is_closed_and_opened_again_later(void **state)
{
	nics_come_back = true;
	__atomic_store_n(&nic_open_status, -ENOMEM, __ATOMIC_SEQ_CST);
	loses(1);
	/* each device that was opened is closed again */
	assert_true(nodes_until(device_cuts == 3, 10000));
	assert_int_equal(stub_count(REOPENS), 2);
	__atomic_store_n(&nic_open_status, 0, __ATOMIC_SEQ_CST);
	renew_left = -ENOMEM;
	assert_true(nodes_until(device_cuts == 4, 10000));
	assert_string_equal(conns_rail_why(control, 1), "a client's memory cannot be registered");
	renew_left = 1;
	assert_true(nodes_until(stub_count(REOPENS) == 4, 20000));
	rail_lost(control, 1, "it dies while memory is registered");
	renew_left = 0;
	assert_true(nodes_until(device_cuts == 5, 10000));
	assert_string_equal(state_of(1), "lost");
	assert_true(nodes_until(strcmp(state_of(1), "up") == 0, 40000));
	/* all but the first one closed a device that the rail never got */
	assert_int_equal(stub_count(NIC_CLOSES), 4);
	assert_int_equal(control->counter[COUNTER_rails_down], 1);
}

static void a_nic_that_dies_again_and_again_gets_longer_pauses(void **state)
{
	uint64_t pause_ns, before_ns = 0;

	nics_come_back = true;
	for (unsigned i = 0; i < 4; i++) {
		pause_ns = net_now();
		loses(1);
		assert_true(nodes_until(strcmp(state_of(1), "up") == 0, 20000));
		pause_ns = net_now() - pause_ns;
		assert_true(pause_ns > (1000000000ull << i));
		assert_true(pause_ns > before_ns);
		before_ns = pause_ns;
	}
	nodes_run(11000);
	pause_ns = net_now();
	loses(1);
	assert_true(nodes_until(strcmp(state_of(1), "up") == 0, 20000));
	assert_true(net_now() - pause_ns < 2000000000);
}

/* A client that registers memory has the device for longer than 10 s. */
static void a_device_is_closed_when_clients_have_given_it_back(void **state)
{
	nics_come_back = true;
	sessions_lent = 1;
	rail_lost(control, 1, "local catastrophic error");
	assert_int_equal(shm_load(&control->status->lent_back), 1);
	conns_quiet(control, 1);
	nodes_run(30000);
	assert_int_equal(device_cuts, 0);
	sessions_lent = 0;
	assert_true(nodes_until(device_cuts == 1, 2000));
	assert_true(nodes_until(strcmp(state_of(1), "up") == 0, 3000));
	assert_int_equal(shm_load(&control->status->lent_back), 0);
}

static void a_nic_is_not_opened_while_a_client_registers_memory(void **state)
{
	nics_come_back = true;
	__atomic_store_n(&reopen_status, -ENODEV, __ATOMIC_SEQ_CST);
	loses(1);
	assert_true(
		nodes_until(stub_count(REOPENS) == 1 && !control->conns->health[1].attempt, 10000));
	/* while the NIC is away, the others are lent */
	assert_int_equal(shm_load(&control->status->lent_back), 0);
	sessions_lent = 1;
	__atomic_store_n(&reopen_status, 0, __ATOMIC_SEQ_CST);
	nodes_run(5000);
	assert_int_equal(stub_count(REOPENS), 1);
	sessions_lent = 0;
	renew_left = 1;
	assert_true(nodes_until(stub_count(REOPENS) == 2, 2000));
	assert_int_equal(shm_load(&control->status->lent_back), 1);
	renew_left = 0;
	assert_true(nodes_until(strcmp(state_of(1), "up") == 0, 3000));
	assert_int_equal(shm_load(&control->status->lent_back), 0);
}

static void without_a_rail_the_engine_waits_for_nics_that_may_come_back(void **state)
{
	nics_come_back = true;
	__atomic_store_n(&reopen_status, -ENODEV, __ATOMIC_SEQ_CST);
	loses(0);
	loses(1);
	nodes_run(3000);
	assert_int_equal(control->failed, 0);
	__atomic_store_n(&reopen_status, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(shm_load(&control->status->rails_out) == 0, 3000));
}

static void a_lost_rail_serves_no_peer(void **state)
{
	connected(0);
	assert_int_equal(qps_alive, 4);
	rail_lost(&node[1].control, 0, "local catastrophic error");
	conns_quiet(&node[1].control, 0);
	/* node 1, whose NIC was lost, has destroyed its QPs */
	assert_true(nodes_until(qps_alive == 2, 10000));
	node[0].rail[1].tells = node[0].rail[0].tells = 0;
	conns_broken(control, 0, &LIST_FIRST(&control->conns->out_conns)->handle, 0x15);
	assert_int_equal(told(0, 0)->kind, RAIL_CONN_DROP);
	conns_returned(control, 0, &LIST_FIRST(&control->conns->out_conns)->handle);
	/* The refusal shows that node 1 refused the Connect of the probe */
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_REFUSE);
	assert_true(nodes_until(qps_alive == 0, 500));
	conns_stop(control);
}

static void a_connection_being_made_on_a_lost_rail_is_given_up(void **state)
{
	/* node 1's two dv_qp_connect() calls return; the calls of node 0 block */
	connects_free = 2;
	connects_blocked = 1;
	want(0);
	assert_true(nodes_until(
		LIST_FIRST(&control->conns->out_conns)->state == OUT_CONN_CONNECTING, 1900));
	rail_lost(control, 0, "local catastrophic error");
	assert_int_equal(told(0, 0)->kind, RAIL_CONN_REFUSE);
	assert_int_equal(told(0, 1)->kind, RAIL_LOST);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	conns_quiet(control, 0);
	assert_true(nodes_until(LIST_EMPTY(&control->conns->out_conns), 500));
	assert_int_equal(node[0].rail[0].tells, 2);
	conns_stop(&node[1].control);
	assert_true(nodes_until(qps_alive == 0, 500));
}

static void a_rail_that_is_out_already_goes_down_once(void **state)
{
	connected(0);
	conns_port(control, 0, -ENETDOWN, "no link");
	rail_lost(control, 0, "local catastrophic error");
	assert_int_equal(control->counter[COUNTER_rails_down], 1);
	assert_int_equal(shm_load(&control->status->rails_out), 1);
	conns_quiet(control, 0);
	assert_true(nodes_until(control->conns->health[0].cut, 500));
}

static void the_loss_of_the_last_rail_ends_the_engine_in_order(void **state)
{
	rail_lost(control, 1, "local catastrophic error");
	assert_int_equal(control->failed, 0);
	rail_lost(control, 0, "local catastrophic error");
	assert_int_equal(control->failed, -ENODEV);
	conns_quiet(control, 0);
	conns_quiet(control, 1);
	assert_true(nodes_until(device_cuts == 2, 500));
}

static void a_device_whose_events_cannot_be_read_is_lost(void **state)
{
	unsigned reads;

	/* the device's event descriptor is always readable */
	event_fd = eventfd(1, EFD_CLOEXEC);
	control->rails = 1;
	assert_int_equal(device_event_open(control), 0);
	nodes_run(10);
	assert_int_equal(shm_load(&control->status->rails_out), 0);
	event_status = -EIO;
	nodes_run(10);
	assert_int_equal(shm_load(&control->status->rails_out), 1);
	assert_int_equal(told(0, 0)->kind, RAIL_LOST);
	reads = stub_count(EVENT_READS);
	nodes_run(10);
	/* The loop does not read the events of that device again and again */
	assert_int_equal(stub_count(EVENT_READS), reads);
	device_event_close(control);
	control->rails = 2;
	close(event_fd);
	event_fd = -1;
	event_status = 0;
}

/* ---- a queue pair that failed ---------------------------------------------------------------- */

static void a_queue_pair_that_failed_breaks_its_connection(void **state)
{
	struct rail_conn *got = connected(0);
	struct out_conn *conn = got->control;
	uint32_t qpn = dv_qp_number(conn->qps.set.qp[1]);

	/* Another rail's QP may have the same number, so this event breaks nothing on rail 0 */
	conns_qp_failed(control, 1, qpn, "QP fatal");
	conns_qp_failed(control, 0, qpn + 1000, "QP fatal");
	nodes_run(100);
	assert_int_equal(node[0].rail[0].tells, 1);
	conns_qp_failed(control, 0, qpn, "QP fatal");
	assert_int_equal(rails_out(), 1);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	conns_returned(control, 0, got);
	/* the rail got a new connection to the same peer */
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_ADD);
	conns_stop(control);
}

static void a_passive_queue_pair_that_failed_is_destroyed(void **state)
{
	struct in_conn *in_conn;

	connected(0);
	in_conn = LIST_FIRST(&node[1].control.conns->in_conns);
	conns_qp_failed(&node[1].control, 0, dv_qp_number(in_conn->qps.set.qp[0]), "QP fatal");
	assert_true(nodes_until(qps_alive == 2, 10000));
	conns_stop(control);
}

/* ---- when a connection is stalled ------------------------------------------------------------ */

static void the_stall_limit_is_longer_than_a_late_ack(void **state)
{
	struct rail_conn *got;

	node[0].settings.rail_stall_ms = 20;
	ack_ns = 16777216;
	got = connected(0);
	assert_int_equal(got->stall_ns, CONN_STALL_ACKS * 16777216ull);
	ack_ns = 1000000;
	got = connected(1);
	assert_int_equal(got->stall_ns, 20000000);
	/* so long they may go on after this engine, if a client has their device */
	assert_int_equal(shm_load(&control->status->lent_ms), 2000 + 8 * 4 * 16777216ull / 1000000);
	control->rails = 1;
	assert_true(nodes_until(true, 1));
	control->rails = 2;
	conns_stop(control);
}

/* ---- aborting -------------------------------------------------------------------------------- */

/*
 * Runs `scene` in a child process whose standard error and `out` are one pipe. Returns the text it
 * wrote, and its status as of waitpid().
 */
static const char *child_text(void (*scene)(int out), int *ret_status)
{
	static char text[4096];
	struct rlimit none = {0, 0};
	size_t used = 0;
	int fds[2];
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	if (pid == 0) {
		void *state = NULL;

		setrlimit(RLIMIT_CORE, &none);
		/*
		 * removes cmocka's handler of SIGABRT, so that the child process ends by the signal
		 */
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		close(fds[0]);
		alarm(60);
		if (open_nodes(&state) == 0)
			scene(fds[1]);
		_exit(0);
	}
	close(fds[1]);
	while (used < sizeof(text) - 1 &&
		(n = read(fds[0], text + used, sizeof(text) - 1 - used)) > 0)
		used += (size_t)n;
	text[used] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(pid, ret_status, 0), pid);
	return text;
}

/* The same of a child that was aborted. */
static const char *aborted(void (*scene)(int out))
{
	int status;
	const char *text = child_text(scene, &status);

	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
		fail_msg("status %d, not aborted: %s", status, text);
	return text;
}

static void says(const char *text, const char *words)
{
	if (!strstr(text, words))
		print_message("\"%s\" is not in: %s\n", words, text);
	assert_non_null(strstr(text, words));
}

static void device_without_events(int out)
{
	int status = device_event_open(control);

	device_event_close(control);
	_exit(status < 0);
}

static void a_device_that_cannot_be_watched_is_named(void **state)
{
	int status;
	const char *text = child_text(device_without_events, &status);

	says(text, "rail 0: a stub said no: this NIC is not watched");
	assert_int_equal(status, 0);
}

static void device_that_cannot_be_closed(int out)
{
	cut_status = -EIO;
	connected(0);
	rail_lost(control, 0, "local catastrophic error");
	conns_quiet(control, 0);
	nodes_run(1000);
}

static void a_device_that_can_neither_be_used_nor_closed_ends_the_engine(void **state)
{
	says(aborted(device_that_cannot_be_closed),
		"the engine aborts: rail 0: the NIC can neither be used nor closed: a stub said");
}

/*
 * Neither proof is possible: destroying the queue pairs fails, and the device is not closed because
 * the rail does not stop polling.
 */
static void memory_is_never_released(int out)
{
	struct rail_conn *got = connected(0);

	qp_kill_status = -EIO;
	conns_broken(control, 0, got, 0);
	conns_stuck(control, 0, got, clock_now_ns() + 3000000000);
	nodes_run(3000 + 2000 + 5000 - 100);
	if (write(out, "still there\n", 12) != 12)
		_exit(1);
	nodes_run(200);
}

static void an_engine_aborts_seven_seconds_after_a_deadline_it_cannot_keep(void **state)
{
	const char *text = aborted(memory_is_never_released);

	says(text, "still there\n");
	says(strstr(text, "still there\n"),
		"the engine aborts: rail 0: mlx5_0 does not give up the memory that READs from peer");
}

static void a_device_is_never_given_back(int out)
{
	sessions_lent = 1;
	rail_lost(control, 1, "local catastrophic error");
	conns_quiet(control, 1);
	for (unsigned i = 0; i < 4000; i++) {
		nodes_pass(49);
		nodes_run(1);
	}
}

static void an_engine_aborts_when_a_client_keeps_a_lost_nic_for_three_minutes(void **state)
{
	const char *text = aborted(a_device_is_never_given_back);

	says(text, "keeps the device of this lost NIC open: continue it if it is stopped");
	says(text, "the engine aborts: rail 1: a process that registers memory has kept");
}

/*
 * The process is stopped (SIGSTOP, or a suspended virtual machine) while a helper thread destroys
 * queue pairs.
 */
static void time_during_which_the_process_was_stopped_does_not_abort_the_engine(void **state)
{
	struct rail_conn *got = connected(0);

	conns_broken(control, 0, got, 0);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	conns_stuck(control, 0, got, clock_now_ns());
	/* a stopping control plane probes no connection, which would add commands for the rail */
	control->stopping = true;
	while (qps_kills < 2)
		/* both queue pairs are destroyed, but the control plane does not know it yet */
		usleep(1000);
	nodes_pass(60000);
	nodes_run(100);
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_RETIRE);
	nodes_run(CONN_ABORT_NS / 1000000 - 1000);
	/* the process is stopped again: time passes in which the rail cannot run either */
	nodes_pass(60000);
	nodes_run(400);
	ends(0, got);
}

#define L(name) cmocka_unit_test_setup_teardown(name, open_nodes, teardown)

static void a_lost_nic_is_left_out_without_connections(void **state)
{
	struct control *bare = calloc(1, sizeof(*bare));

	assert_non_null(bare);
	upward_fill(bare);
	bare->client_events->nic_lost(bare, 0, "test");
	assert_int_equal(bare->failed, 0);
	free(bare);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lost_nic_is_left_out_without_connections),
		L(a_connection_that_cannot_be_put_in_error_is_destroyed_and_then_retired),
		L(no_queue_pair_is_destroyed_before_the_rail_reports_that_it_has_stopped_posting),
		L(a_connection_that_does_not_drain_is_destroyed_and_then_retired),
		L(eio_is_no_proof_that_the_nic_stopped_but_a_closed_device_is),
		L(a_connection_that_drains_meanwhile_is_destroyed_once),
		L(a_software_nic_that_died_is_closed_and_stays_lost),
		L(a_nic_is_opened_anew_when_it_is_back_and_all_memory_is_registered),
		L(a_nic_is_not_opened_before_its_connections_are_freed),
		L(a_nic_that_does_not_come_back_whole_is_closed_and_opened_again_later),
		L(a_nic_that_dies_again_and_again_gets_longer_pauses),
		L(a_device_is_closed_when_clients_have_given_it_back),
		L(a_nic_is_not_opened_while_a_client_registers_memory),
		L(without_a_rail_the_engine_waits_for_nics_that_may_come_back),
		L(a_lost_rail_serves_no_peer),
		L(a_connection_being_made_on_a_lost_rail_is_given_up),
		L(a_rail_that_is_out_already_goes_down_once),
		L(the_loss_of_the_last_rail_ends_the_engine_in_order),
		L(a_device_whose_events_cannot_be_read_is_lost),
		L(a_queue_pair_that_failed_breaks_its_connection),
		L(a_passive_queue_pair_that_failed_is_destroyed),
		L(the_stall_limit_is_longer_than_a_late_ack),
		L(time_during_which_the_process_was_stopped_does_not_abort_the_engine),
		cmocka_unit_test(a_device_that_cannot_be_watched_is_named),
		cmocka_unit_test(a_device_that_can_neither_be_used_nor_closed_ends_the_engine),
		cmocka_unit_test(an_engine_aborts_seven_seconds_after_a_deadline_it_cannot_keep),
		cmocka_unit_test(an_engine_aborts_when_a_client_keeps_a_lost_nic_for_three_minutes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
