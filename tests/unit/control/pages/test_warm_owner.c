/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots of earlier engines: a channel that an earlier engine left is ended, and the slot that its
 * client copies into stays reserved until the client has left it or its process has exited. This
 * file includes the source; what it calls are stubs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <event2/event.h>

#include "engine/control/pages/warm.c"

#define OWNER 7u
#define PROCESS 3u
#define SLOTS 4u
#define STORED_MAX 8u

static struct control control;
static struct warm_state state;
static struct warm warm;
static struct {
	char name[STORED_NAME_BYTES];
	int fd; /* -1: it was given to the engine */
	bool removed;
} stored[STORED_MAX];
static unsigned stored_count;
static uint32_t returned[SLOTS], returns;
static pid_t client;
static int child_end; /* the client's child ends when this is closed */

int service_stored_number(const char *prefix, uint32_t *ret_number)
{
	int fd;

	for (unsigned i = 0; i < stored_count; i++) {
		const char *digits = stored[i].name + strlen(prefix);

		if (stored[i].fd < 0 || strncmp(stored[i].name, prefix, strlen(prefix)) ||
			strchr(digits, '-'))
			continue;
		*ret_number = (uint32_t)atoi(digits);
		fd = stored[i].fd;
		stored[i].fd = -1;
		return fd;
	}
	return -1;
}

void service_store(const char *name, int fd)
{
	assert_true(stored_count < STORED_MAX);
	snprintf(stored[stored_count].name, STORED_NAME_BYTES, "%s", name);
	stored[stored_count++].fd = fd;
}

void service_unstore(const char *name)
{
	for (unsigned i = 0; i < stored_count; i++)
		stored[i].removed |= !strcmp(stored[i].name, name);
}

int service_stored(const char *name)
{
	return -1;
}

bool service_stores(void)
{
	return true;
}

int service_barrier(unsigned timeout_ms)
{
	return 0;
}

void evict_hold(struct evict *evict, unsigned rail, uint32_t length, int change)
{
	(void)evict, (void)rail, (void)length, (void)change;
}

void evict_give_back(struct evict *evict, uint32_t place, uint32_t generation, uint32_t length)
{
	(void)generation, (void)length;
	assert_ptr_equal(evict, control.evict);
	returned[returns++] = place;
}

static bool removed(const char *name)
{
	for (unsigned i = 0; i < stored_count; i++)
		if (!strcmp(stored[i].name, name))
			return stored[i].removed;
	return false;
}

static void slot_add(uint32_t owner, uint32_t place)
{
	warm.slot[warm.slots++] = (struct pool_quarantined){
		.owner = owner, .place = place, .generation = 5, .length = 4096};
}

/* A client's process with a child, which has copies of all its descriptors and outlives it. */
static void client_start(void)
{
	int begun[2], end[2];
	char byte;

	assert_int_equal(pipe(begun), 0);
	assert_int_equal(pipe(end), 0);
	client = fork();
	if (!client) {
		close(end[1]);
		if (fork() == 0)
			assert_int_equal(write(begun[1], "", 1), 1);
		_exit((int)read(end[0], &byte, 1));
	}
	assert_int_equal(read(begun[0], &byte, 1), 1);
	close(begun[0]);
	close(begun[1]);
	close(end[0]);
	child_end = end[1];
}

static void client_end(void)
{
	if (client)
		kill(client, SIGKILL);
	if (client)
		waitpid(client, NULL, 0);
	client = 0;
}

static int setup(void **unused)
{
	memset(&warm, 0, sizeof(warm));
	memset(&state, 0, sizeof(state));
	memset(stored, 0, sizeof(stored));
	stored_count = returns = 0;
	control = (struct control){.warm = &warm, .base = event_base_new()};
	warm.state = &state;
	state.next_owner = OWNER;
	warm.slot = calloc(SLOTS, sizeof(*warm.slot));
	client_start();
	return control.base && warm.slot ? 0 : -1;
}

static int teardown(void **unused)
{
	client_end();
	close(child_end);
	left_forget(&control);
	free(warm.slot);
	event_base_free(control.base);
	return 0;
}

/* A channel that an engine before this one has stored. Returns its header. */
static struct channel_header *left_behind(uint32_t owner, uint32_t version, unsigned seals)
{
	char name[STORED_NAME_BYTES];
	int fd = memfd_create("channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct channel_header *header;

	assert_int_equal(ftruncate(fd, 4 * PAGE_UNIT), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	header = mmap(NULL, PAGE_UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(header, MAP_FAILED);
	header->magic = CHANNEL_MAGIC;
	header->version = version;
	channel_name(name, PROCESS, owner);
	service_store(name, fd);
	return header;
}

static void process_left_behind(void)
{
	int fd = (int)syscall(SYS_pidfd_open, client, 0);

	assert_true(fd >= 0);
	service_store("process-3", fd);
}

static void look_until(uint32_t slots)
{
	while (warm.slots > slots)
		assert_true(event_base_loop(control.base, EVLOOP_ONCE) >= 0);
}

static void only_the_slot_that_is_copied_into_stays(void **unused)
{
	struct channel_header *header = left_behind(OWNER, ABI_VERSION, F_SEAL_SHRINK);

	process_left_behind();
	slot_add(OWNER, 100);
	slot_add(OWNER, 200);
	slot_add(OWNER + 1, 300); /* of a channel that is not known */
	slot_add(OWNER, 400);
	shm_store64(&header->copying, slot_name(200, 5));
	assert_int_equal(left_watch(&control), 0);
	assert_int_equal(shm_load(&header->stopped), 1);
	assert_int_equal(returns, 2);
	assert_int_equal(returned[0], 100);
	assert_int_equal(returned[1], 400);
	assert_false(removed("channel-3-7") || removed("process-3"));
	/* the client begins the next copy, sees that it is stopped, and gives it up */
	shm_store64(&header->copying, slot_name(400, 5));
	look_until(1);
	assert_int_equal(returned[2], 200);
	assert_true(removed("channel-3-7") && removed("process-3"));
	assert_int_equal(warm.slot[0].place, 300);
	munmap(header, PAGE_UNIT);
}

static void the_same_place_in_another_use_does_not_stay(void **unused)
{
	struct channel_header *header = left_behind(OWNER, ABI_VERSION, F_SEAL_SHRINK);

	process_left_behind();
	slot_add(OWNER, 100);
	shm_store64(&header->copying, slot_name(100, 4));
	assert_int_equal(left_watch(&control), 0);
	assert_int_equal(returns, 1);
	assert_true(removed("channel-3-7") && removed("process-3"));
	munmap(header, PAGE_UNIT);
}

static void a_client_that_is_dead_is_dead_whatever_its_child_holds(void **unused)
{
	struct channel_header *header = left_behind(OWNER, ABI_VERSION, F_SEAL_SHRINK);

	process_left_behind();
	slot_add(OWNER, 100);
	shm_store64(&header->copying, slot_name(100, 5));
	assert_int_equal(left_watch(&control), 0);
	assert_int_equal(returns, 0);
	client_end();
	look_until(0);
	assert_true(removed("channel-3-7") && removed("process-3"));
	munmap(header, PAGE_UNIT);
}

static void a_client_that_died_before_reserves_nothing(void **unused)
{
	struct channel_header *header = left_behind(OWNER, ABI_VERSION, F_SEAL_SHRINK);

	process_left_behind();
	slot_add(OWNER, 100);
	shm_store64(&header->copying, slot_name(100, 5));
	client_end();
	assert_int_equal(left_watch(&control), 0);
	assert_int_equal(returns, 1);
	munmap(header, PAGE_UNIT);
}

static void without_a_usable_segment_all_slots_stay_until_the_process_ends(void **unused)
{
	struct channel_header *other = left_behind(OWNER, ABI_VERSION + 1, F_SEAL_SHRINK);
	struct channel_header *unsealed = left_behind(OWNER + 1, ABI_VERSION, F_SEAL_GROW);

	process_left_behind();
	slot_add(OWNER, 100);
	slot_add(OWNER, 200);
	slot_add(OWNER + 1, 300);
	assert_int_equal(left_watch(&control), 0);
	assert_true(event_base_loop(control.base, EVLOOP_ONCE) >= 0);
	assert_int_equal(returns, 0);
	assert_int_equal(shm_load(&other->stopped), 0);
	client_end();
	look_until(0);
	assert_true(removed("channel-3-7") && removed("channel-3-8") && removed("process-3"));
	munmap(other, PAGE_UNIT);
	munmap(unsealed, PAGE_UNIT);
}

static void a_process_is_watched_until_its_last_channel_has_ended(void **unused)
{
	struct channel_header *first = left_behind(OWNER, ABI_VERSION, F_SEAL_SHRINK);
	struct channel_header *second = left_behind(OWNER + 1, ABI_VERSION, F_SEAL_SHRINK);

	process_left_behind();
	slot_add(OWNER, 100);
	slot_add(OWNER + 1, 200);
	shm_store64(&first->copying, slot_name(100, 5));
	shm_store64(&second->copying, slot_name(200, 5));
	assert_int_equal(left_watch(&control), 0);
	shm_store64(&first->copying, 0);
	look_until(1);
	assert_true(removed("channel-3-7") && !removed("process-3"));
	shm_store64(&second->copying, 0);
	look_until(0);
	assert_true(removed("channel-3-8") && removed("process-3"));
	munmap(first, PAGE_UNIT);
	munmap(second, PAGE_UNIT);
}

static void a_process_without_channels_is_not_kept(void **unused)
{
	process_left_behind();
	assert_int_equal(left_watch(&control), 0);
	assert_true(removed("process-3"));
}

static void each_channel_has_a_number_of_its_own(void **unused)
{
	uint32_t process = 0;

	assert_int_equal(warm_owner_new(&control, 10, 11, &process), OWNER + 1);
	assert_int_equal(process, OWNER);
	assert_string_equal(stored[0].name, "process-7");
	assert_int_equal(stored[0].fd, 11);
	assert_string_equal(stored[1].name, "channel-7-8");
	assert_int_equal(stored[1].fd, 10);
	assert_int_equal(warm_owner_new(&control, 12, 11, &process), OWNER + 2);
	assert_int_equal(stored_count, 3);
	warm_owner_end(&control, OWNER + 2, process);
	assert_true(removed("channel-7-9") && !removed("channel-7-8"));
	warm_process_end(&control, process);
	assert_true(removed("process-7"));
	state.next_owner = UINT32_MAX;
	assert_int_equal(warm_owner_new(&control, 12, 11, &process), UINT32_MAX);
	process = 0;
	assert_int_equal(warm_owner_new(&control, 12, -1, &process), UINT32_MAX);
	assert_int_equal(process, 0);
	assert_int_equal(stored_count, 3);
	control.warm = NULL;
	assert_int_equal(warm_owner_new(&control, 12, 11, &process), POOL_OWNER_NONE);
	control.warm = &warm;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(only_the_slot_that_is_copied_into_stays),
		CASE(the_same_place_in_another_use_does_not_stay),
		CASE(a_client_that_is_dead_is_dead_whatever_its_child_holds),
		CASE(a_client_that_died_before_reserves_nothing),
		CASE(without_a_usable_segment_all_slots_stay_until_the_process_ends),
		CASE(a_process_is_watched_until_its_last_channel_has_ended),
		CASE(a_process_without_channels_is_not_kept),
		CASE(each_channel_has_a_number_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
