/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs that are lent to clients, which register memory themselves: when, and what proves that a
 * client has given them back. The clients are sockets of this process, which does not end. See
 * client_world.h.
 */
#include "tests/unit/control/clients/client_world.h"

static int lend(int *ret_fd, uint32_t *ret_domain)
{
	*ret_domain = 7;
	*ret_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return *ret_fd < 0 ? -errno : 0;
}

static int begin(void **state)
{
	int rc = setup(state);

	nic_stub.lend = lend;
	settings.engine_client_verbs = CLIENT_VERBS_SAME_USER;
	return rc;
}

static int end(void **state)
{
	settings.engine_client_verbs = CLIENT_VERBS_NO;
	return teardown(state);
}

/* A client that has said hello, so that the engine has its pidfd. */
static int attached(void)
{
	int fd = dial();

	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, -1), 0);
	return fd;
}

/* Begins a loan; returns the client's end of it. All devices are closed. */
static int lent(int fd)
{
	struct answer a;
	int loan = -1;

	for (unsigned rail = 0; rail < RAILS; rail++) {
		assert_true(ask(fd, request_of(ATTACH_LEND, rail, 4096), NULL, 0, &a));
		assert_int_equal(a.reply.status, 0);
		assert_int_equal(a.reply.a, 7);
		assert_int_equal(a.fds, rail ? 1 : 2);
		if (!rail)
			loan = a.fd[0];
		close(a.fd[rail ? 0 : 1]);
	}
	assert_int_equal(shm_load(&control.status->lent), control.clients->lent);
	return loan;
}

static void returns(int loan)
{
	assert_int_equal(send(loan, "", 1, 0), 1);
	close(loan);
}

static void swept(unsigned times)
{
	for (unsigned i = 0; i < 60000 && control.clients->sweeping; i++) {
		pump();
		usleep(1000);
	}
	assert_int_equal(nic_stub.sweeps, times * RAILS);
}

static void nothing_is_lent_while_a_nic_is_lost_or_opened_anew(void **state)
{
	int fd = attached(), loan;

	shm_store(&control.status->lent_back, 1);
	assert_int_equal(status_of(fd, ATTACH_LEND, 0, 4096, -1), -EAGAIN);
	assert_int_equal(control.clients->lent, 0);
	shm_store(&control.status->lent_back, 0);
	loan = lent(fd);
	/* in the middle of a loan, too: the client gives back and begins anew */
	shm_store(&control.status->lent_back, 1);
	assert_int_equal(status_of(fd, ATTACH_LEND, 1, 4096, -1), -EAGAIN);
	returns(loan);
	assert_int_equal(status_of(fd, ATTACH_REGION_IMPORT, 0, 0, -1), -EINVAL);
	assert_int_equal(control.clients->lent, 0);
	swept(1);
	close(fd);
	pump_until_sessions(0);
}

static void a_loan_begins_at_the_first_rail_and_only_once(void **state)
{
	int fd = attached(), loan;

	assert_int_equal(status_of(fd, ATTACH_LEND, 1, 4096, -1), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_LEND, RAILS, 4096, -1), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_LEND, 0, 0, -1), -EINVAL);
	loan = lent(fd);
	assert_int_equal(status_of(fd, ATTACH_LEND, 0, 4096, -1), -EINVAL);
	/* it has closed its end: nothing of the loan before is left, so it is swept first */
	close(loan);
	assert_int_equal(status_of(fd, ATTACH_LEND, 0, 4096, -1), -EAGAIN);
	swept(1);
	returns(lent(fd));
	close(fd);
	pump_until_sessions(0);
	assert_int_equal(control.clients->lent, 0);
	swept(2);
}

/* What region_keys_read() wants: a key for each rail. */
static int keys(void)
{
	struct region_key key[RAILS] = {{1, 11}, {2, 22}};
	int fd = memfd_of(0, 0);

	assert_int_equal(write(fd, key, sizeof(key)), sizeof(key));
	return fd;
}

static void memory_is_taken_over_when_the_nics_were_given_back(void **state)
{
	static char memory[4096];
	const uint64_t at = (uintptr_t)memory;
	int fd = attached(), loan = lent(fd), memfd = keys();
	struct answer a;

	assert_int_equal(status_of(fd, ATTACH_REGION_IMPORT, at, 4096, memfd), -EINVAL);
	assert_int_equal(control.clients->lent, 1);
	returns(loan);
	assert_true(ask(fd, request_of(ATTACH_REGION_IMPORT, at, 4096), &memfd, 1, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(control.clients->lent, 0);
	assert_int_equal(told(RAIL_REGION_ADD), RAILS);
	swept(0);
	world.mrs = RAILS; /* what they registered is deregistered with the session */
	close(memfd);
	close(fd);
	pump();
	rails_answer();
	pump_until_sessions(0);
	assert_int_equal(world.mrs, 0);
}

/* As that of a client whose memory is unknown to a NIC that is back: the process lives on. */
static void a_session_that_ended_gives_back_by_a_byte(void **state)
{
	int fd = attached(), loan = lent(fd);

	close(fd);
	pump();
	assert_int_equal(control.clients->sessions, 1);
	assert_int_equal(control.clients->lent, 1);
	returns(loan);
	pump_until_sessions(0);
	assert_int_equal(control.clients->lent, 0);
	assert_int_equal(shm_load(&control.status->lent), 0);
	swept(1);
}

/* The kernel closes it before a device of a process that is killed, whose end proves more. */
static void a_loan_that_is_closed_without_a_byte_proves_nothing(void **state)
{
	int fd = attached(), loan = lent(fd);
	struct session *s = control.clients->session[0];
	int pidfd = s->pidfd, gone = eventfd(1, EFD_CLOEXEC);
	pid_t exits = fork();
	siginfo_t info;

	if (exits == 0)
		_exit(0);
	assert_int_equal(waitid(P_PID, (id_t)exits, &info, WEXITED | WNOWAIT), 0);
	s->pid = exits; /* as a process whose files are being closed */
	close(fd);
	close(loan);
	pump();
	assert_int_equal(control.clients->lent, 1);
	s->pidfd = gone; /* readable, as that of a process that has ended */
	pump_until_sessions(0);
	assert_int_equal(control.clients->lent, 0);
	assert_int_equal(waitpid(exits, NULL, 0), exits);
	close(pidfd);
	swept(1);
}

/* READs of the channel wait until a lost NIC is closed, and that waits for the loan. */
static void a_session_whose_channels_wait_gives_back_first(void **state)
{
	int fd = attached(), loan;
	struct answer a;

	assert_true(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	assert_int_equal(a.reply.status, 0);
	forget_fds(&a);
	loan = lent(fd);
	close(fd);
	returns(loan);
	pump();
	assert_int_equal(control.clients->lent, 0);
	assert_int_equal(control.clients->sessions, 1);
	rails_answer();
	pump();
	rails_answer();
	pump_until_sessions(0);
	swept(1);
}

/* As that of a process that stopped waiting for the answer: it lives on. */
static void a_loan_whose_reply_was_never_taken_is_none(void **state)
{
	struct attach_request request = request_of(ATTACH_LEND, 0, 4096);
	int fd = attached();

	assert_int_equal(send(fd, &request, sizeof(request), 0), sizeof(request));
	pump();
	pump();
	assert_int_equal(control.clients->lent, 1);
	close(fd);
	pump_until_sessions(0);
	assert_int_equal(control.clients->lent, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(nothing_is_lent_while_a_nic_is_lost_or_opened_anew),
		CASE(a_loan_begins_at_the_first_rail_and_only_once),
		CASE(memory_is_taken_over_when_the_nics_were_given_back),
		CASE(a_session_that_ended_gives_back_by_a_byte),
		CASE(a_loan_that_is_closed_without_a_byte_proves_nothing),
		CASE(a_session_whose_channels_wait_gives_back_first),
		CASE(a_loan_whose_reply_was_never_taken_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
