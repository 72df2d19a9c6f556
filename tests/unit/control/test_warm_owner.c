/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of earlier engines: each way in which a client leaves its channel is noticed, also by an
 * engine that starts later. This file includes the source; what it calls are stubs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

#include <cmocka.h>
#include <event2/event.h>

#include "engine/control/warm_owner.c"

#define OWNER 7u

static struct control control;
static struct clients attach;
static struct warm_state state;
static struct warm warm;
static int stored, removed, returned;
static char last_name[STORED_NAME_BYTES];

int service_stored_number(const char *prefix, uint32_t *ret_number)
{
	int fd = stored;

	assert_string_equal(prefix, "channel-");
	*ret_number = OWNER;
	stored = -1;
	return fd;
}

void service_store(const char *name, int fd)
{
	assert_true(fd >= 0);
	snprintf(last_name, sizeof(last_name), "%s", name);
}

void service_unstore(const char *name)
{
	snprintf(last_name, sizeof(last_name), "%s", name);
	removed++;
}

void ctl_credit_return(struct control *c, const struct credit *credit)
{
	assert_ptr_equal(c, &control);
	assert_int_equal(credit->place, 100);
	returned++;
}

void closer_take(struct closer *closer, int fd)
{
	(void)closer;
	close(fd);
}

static int setup(void **unused)
{
	(void)unused;
	memset(&warm, 0, sizeof(warm));
	memset(&state, 0, sizeof(state));
	control = (struct control){.clients = &attach, .warm = &warm, .base = event_base_new()};
	assert_non_null(control.base);
	warm.state = &state;
	state.next_owner = OWNER;
	warm.slot = calloc(2, sizeof(*warm.slot));
	assert_non_null(warm.slot);
	warm.slot[0] = (struct pool_quarantined){
		.owner = OWNER, .place = 100, .generation = 1, .length = 4096};
	warm.slot[1] = (struct pool_quarantined){.owner = OWNER + 1, .place = 200};
	warm.slots = warm.room = 2;
	removed = returned = 0;
	return 0;
}

static int teardown(void **unused)
{
	(void)unused;
	left_forget(&control);
	free(warm.slot);
	event_base_free(control.base);
	return 0;
}

static void look(void)
{
	assert_true(event_base_loop(control.base, EVLOOP_NONBLOCK) >= 0);
}

static void pair(int ends[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
	stored = ends[0];
}

static void check_returned(void)
{
	look();
	assert_int_equal(returned, 1);
	assert_int_equal(removed, 1);
	assert_string_equal(last_name, "channel-7");
	assert_int_equal(warm.slots, 1);
	assert_true(LIST_EMPTY(&warm.left));
}

static void a_client_that_closes_is_noticed(void **unused)
{
	int ends[2];

	(void)unused;
	pair(ends);
	assert_int_equal(left_watch(&control), 0);
	look();
	assert_int_equal(returned, 0);
	close(ends[1]);
	check_returned();
}

static void a_client_that_closed_before_with_a_wake_up_unread_is_noticed(void **unused)
{
	int ends[2];

	(void)unused;
	pair(ends);
	assert_int_equal(send(ends[0], "", 1, MSG_NOSIGNAL), 1);
	close(ends[1]); /* now the socket has an error */
	assert_int_equal(left_watch(&control), 0);
	check_returned();
}

static void a_client_whose_child_has_the_descriptor_is_noticed(void **unused)
{
	int ends[2], copy;

	(void)unused;
	pair(ends);
	copy = dup(ends[1]);
	assert_int_equal(left_watch(&control), 0);
	shutdown(ends[1], SHUT_RDWR);
	close(ends[1]);
	check_returned();
	close(copy);
}

static void bytes_of_a_client_end_nothing(void **unused)
{
	int ends[2], left = 0;

	(void)unused;
	pair(ends);
	assert_int_equal(left_watch(&control), 0);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(send(ends[1], "x", 1, MSG_NOSIGNAL), 1);
		look();
	}
	assert_int_equal(returned, 0);
	/* they were read, so the loop can sleep */
	assert_int_equal(ioctl(ends[0], FIONREAD, &left), 0);
	assert_int_equal(left, 0);
	close(ends[1]);
	check_returned();
}

static void each_channel_has_a_number_of_its_own(void **unused)
{
	uint32_t first = warm_owner_new(&control, 0);

	(void)unused;
	assert_int_equal(first, OWNER);
	assert_string_equal(last_name, "channel-7");
	assert_int_equal(warm_owner_new(&control, 0), OWNER + 1);
	warm_owner_end(&control, OWNER + 1);
	assert_string_equal(last_name, "channel-8");
	state.next_owner = UINT32_MAX;
	last_name[0] = '\0';
	assert_int_equal(warm_owner_new(&control, 0), UINT32_MAX);
	assert_int_equal(warm_owner_new(&control, 0), UINT32_MAX);
	assert_string_equal(last_name, "");
	control.warm = NULL;
	assert_int_equal(warm_owner_new(&control, 0), POOL_OWNER_NONE);
	control.warm = &warm;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_client_that_closes_is_noticed),
		CASE(a_client_that_closed_before_with_a_wake_up_unread_is_noticed),
		CASE(a_client_whose_child_has_the_descriptor_is_noticed),
		CASE(bytes_of_a_client_end_nothing),
		CASE(each_channel_has_a_number_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
