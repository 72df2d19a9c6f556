/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes of test_rpc_nodes.h: network sides of control planes on loopback, with simulated time.
 * The stubs are in test_rpc_stubs.c.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include "engine/abi/wire.h"
#include "engine/control/conns/conns_inner.h"
#include "engine/control/control_inner.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/pages/pages.h"
#include "engine/control/base/work.h"
#include "engine/control/pages/pages_inner.h"
#include "tests/port_free.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TURN_NS 200000

struct node node[NODES];
uint64_t nodes_entries;
bool raw_serves;

static uint16_t port_of[NODES];
static int port_reserved[NODES] = {[0 ... NODES - 1] = -1}; /* descriptors that keep the ports */
static uint64_t incarnations;
/* simulated time in ns; 0: no nodes were set up yet, and the real clock is used */
static uint64_t now_ns;

/* ---- nodes ----------------------------------------------------------------------------------- */

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
	/* Atomic, because threads of some tests read now_ns, too */
	uint64_t ns = __atomic_load_n(&now_ns, __ATOMIC_RELAXED);

	if (!ns || (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_COARSE))
		return (int)syscall(SYS_clock_gettime, id, ret);
	*ret = (struct timespec){
		.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
	return 0;
}

/* ThreadSanitizer's own, which the function below hides; NULL without ThreadSanitizer. */
int __interceptor_pthread_cond_clockwait(pthread_cond_t *, pthread_mutex_t *, clockid_t,
	const struct timespec *) __attribute__((weak));

/*
 * A wait that ends at a simulated time: it takes as long by the kernel's clock, however late the
 * simulated one is.
 */
__attribute__((visibility("default"))) int pthread_cond_clockwait(
	pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id, const struct timespec *until)
{
	int (*wait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
	void *found = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
	struct timespec simulated, real;
	int64_t rest_ns;

	memcpy(&wait, &found, sizeof(wait));
	if (__interceptor_pthread_cond_clockwait)
		wait = __interceptor_pthread_cond_clockwait;
	if (id != CLOCK_MONOTONIC)
		return wait(cond, lock, id, until);
	clock_gettime(id, &simulated);
	syscall(SYS_clock_gettime, id, &real);
	rest_ns = (until->tv_sec - simulated.tv_sec) * 1000000000ll + until->tv_nsec -
		  simulated.tv_nsec + real.tv_nsec;
	real.tv_sec += rest_ns / 1000000000;
	real.tv_nsec = rest_ns % 1000000000;
	return wait(cond, lock, id, &real);
}

static void time_pass(uint64_t ns)
{
	__atomic_store_n(&now_ns, now_ns + ns, __ATOMIC_RELAXED);
}

void nodes_setup(int heartbeat_ms, int dead_after_ms)
{
	struct rlimit files;

	clock_start();
	if (!now_ns)
		time_pass(clock_now_ns());
	signal(SIGPIPE, SIG_IGN); /* SIGPIPE is ignored, as in main.c */
	/* both ends of all links are in this process */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	if (!incarnations)
		incarnations = (uint64_t)getpid() << 20;
	memset(node, 0, sizeof(node));
	raw_serves = true;
	nodes_entries = 4096;
	for (unsigned i = 0; i < NODES; i++) {
		struct settings *s = &node[i].settings;

		settings_default(s);
		node[i].control.shard = &node[i].shard;
		close(port_reserved[i]);
		port_of[i] = port_free(&port_reserved[i]);
		s->cluster_port = port_of[i];
		s->cluster_heartbeat_ms = heartbeat_ms;
		s->cluster_dead_after_ms = dead_after_ms;
	}
}

static void attach_memory(struct node *n)
{
	struct control *control = &n->control;

	control->shard = &n->shard;
	control->statistics = &n->statistics;
	n->statistics = (struct statistics){.refused = 0};
	control->status = aligned_alloc(64, sizeof(*control->status));
	if (control->status)
		memset(control->status, 0, sizeof(*control->status));
	if (!control->status || shard_open(nodes_entries, -1, false, control->shard) < 0 ||
		index_open(1024, &control->index) < 0)
		abort();
	control->bucket_bits = (uint8_t)control->shard->bits;
}

static void door_opened(struct control *control)
{
	((struct node *)control)->doors_opened++;
}

int node_open(unsigned i, const char *seeds)
{
	struct node *n = &node[i];
	struct control *control = &n->control;
	int status;

	memset(control, 0, sizeof(*control));
	memset(n->rail, 0, sizeof(n->rail));
	snprintf(n->settings.cluster_seeds, sizeof(n->settings.cluster_seeds), "%s",
		seeds ? seeds : "");
	control->settings = &n->settings;
	control->remembered = n->remembered;
	control->base = event_base_new();
	incarnations++;
	control->incarnation = map_mix(incarnations);
	if (n->keep_ref)
		control->incarnation = (uint64_t)incarnations << 32 | n->keep_ref;
	control->ref = (uint32_t)control->incarnation;
	snprintf(control->name, sizeof(control->name), "node-%u", i);
	control->rails = n->bare ? 0 : 2;
	for (unsigned r = 0; r < control->rails; r++)
		control->rail[r].rail = (struct rail *)&n->rail[r];
	upward_fill(control);
	attach_memory(n);
	n->open = true;
	n->stalled = false;
	n->doors_opened = 0;
	status = epochs_open(control, door_opened);
	if (status == 0)
		status = secure_open(control);
	if (status == 0)
		status = view_open(control);
	if (status == 0)
		status = rpc_port_open(control);
	if (status == 0)
		status = rpc_open(control);
	if (status == 0)
		status = members_open(control);
	if (status == 0)
		status = directory_open(control);
	if (status == 0)
		status = conns_open(control);
	if (status == 0)
		status = tick_open(control);
	if (status)
		node_close(i);
	return status;
}

void node_close(unsigned i)
{
	struct control *control = &node[i].control;

	if (!node[i].open)
		return;
	node[i].open = false;
	tick_close(control);
	conns_close(control);
	outbox_close(control);
	directory_close(control);
	members_close(control);
	rpc_close(control);
	view_close(control);
	rpc_port_close(control);
	secure_close(control);
	/*
	 * Only the event loop frees the data of a cancelled name look-up, so it must run once more.
	 */
	event_base_loop(control->base, EVLOOP_NONBLOCK);
	epochs_close(control);
	index_close(control->index);
	shard_close(control->shard);
	free(control->status);
	event_base_free(control->base);
}

void nodes_teardown(void)
{
	for (unsigned i = 0; i < NODES; i++)
		node_close(i);
}

const char *node_at(unsigned i)
{
	static char text[NODES][32];

	snprintf(text[i], sizeof(text[i]), "127.0.0.1:%u", port_of[i]);
	return text[i];
}

/* Number of the node's calls that the test blocks. */
static unsigned calls_blocked(const struct node *n)
{
	unsigned blocked = 0;

	if (!__atomic_load_n(&connects_blocked, __ATOMIC_SEQ_CST))
		return 0;
	for (unsigned r = 0; r < n->control.rails; r++)
		blocked += __atomic_load_n(&n->rail[r].blocked, __ATOMIC_SEQ_CST);
	return blocked;
}

/*
 * Helper threads need no simulated time for calls that the test does not block: the simulated time
 * waits for them. While all threads are blocked, other calls wait too.
 */
static void helpers_wait(const struct node *n)
{
	for (;;) {
		unsigned blocked = calls_blocked(n);

		if (conns_busy(&n->control) <= blocked || blocked == CONN_CALLS)
			return;
		event_base_loop(n->control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
		usleep(20);
	}
}

static bool is_node(uint64_t incarnation)
{
	for (unsigned i = 0; i < NODES; i++)
		if (node[i].open && node[i].control.incarnation == incarnation)
			return true;
	return false;
}

/* Answers the probes that the node has sent over a link with a member that the test plays. */
static void raw_serve(const struct control *control)
{
	const struct member_table *table = members_table(control);

	for (unsigned i = 0; i < table->contacts; i++) {
		struct member_probe *probe = &table->contact[i]->probe;

		if (is_node(table->contact[i]->member->record.incarnation))
			continue;
		for (unsigned size = 0; size < PROBE_SIZES; size++) {
			if (!probe->asked_ns[size] || !probe->via[size])
				continue;
			probe->via[size] = NULL;
			probe->asked_ns[size] = 0;
			probe->served_ns[size] = probe->sent_ns[size];
		}
	}
}

void nodes_turn(void)
{
	for (unsigned i = 0; i < NODES; i++) {
		if (!node[i].open || node[i].stalled)
			continue;
		/*
		 * Handles the events of the node that are due, once: at most one step of its walk
		 * per turn.
		 */
		event_base_loop(node[i].control.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
		helpers_wait(&node[i]);
		directory_flush(&node[i].control);
		outbox_flush(&node[i].control);
		if (raw_serves)
			raw_serve(&node[i].control);
	}
	sched_yield(); /* lets the kernel threads run that carry loopback traffic */
	time_pass(TURN_NS);
}

void nodes_run(unsigned ms)
{
	(void)nodes_until(false, ms);
}

void nodes_pass(unsigned ms)
{
	time_pass(ms * 1000000ull);
}

bool sees(unsigned i, unsigned j)
{
	const struct map_shared *map = &node[i].control.status->map;
	const struct member_record *record = member_by_ref(&node[i].control, node[j].control.ref);

	for (uint32_t peer = 0; peer < map->peers; peer++)
		if (map_member_unpack(map->member[peer]).ref == node[j].control.ref)
			return record && record->peer == peer &&
			       record->incarnation == node[j].control.incarnation;
	return false;
}

bool sees_count(unsigned i, unsigned count)
{
	return node[i].control.status->map.members == count;
}

bool all_agree(void)
{
	unsigned open = 0;

	for (unsigned i = 0; i < NODES; i++)
		open += node[i].open;
	for (unsigned i = 0; i < NODES; i++)
		for (unsigned j = 0; j < NODES; j++)
			if (node[i].open && node[j].open && (!sees(i, j) || !sees_count(i, open)))
				return false;
	return true;
}

/* ---- pages ----------------------------------------------------------------------------------- */

struct page_key key_of(uint64_t number)
{
	return (struct page_key){.word = {map_mix(number + 1), map_mix(number + 1000003)}};
}

void node_done(void *context, uint64_t cookie, enum op_status status)
{
	struct node *n = context;

	n->dones++;
	n->hits += status == OP_HIT;
	n->status = status;
}

void node_put(unsigned i, uint64_t number, uint32_t generation, unsigned deadline_ms)
{
	struct index_entry entry = {.key = key_of(number),
		.place = place_make((uint32_t)number & 1, (uint32_t)number & 0xffff),
		.generation = generation,
		.length = 4096};
	struct index_entry *there;

	index_remove(node[i].control.index, &entry.key);
	index_put(node[i].control.index, &entry, &there);
	directory_publish(&node[i].control, &entry.key,
		&(struct location){.place = entry.place, .generation = generation},
		&(struct waiter){.deadline_ns = clock_now_ns() + deadline_ms * 1000000ull,
			.done = node_done,
			.context = &node[i],
			.cookie = number});
}

static unsigned found_in(unsigned owner, unsigned i, uint64_t number)
{
	struct page_key key = key_of(number);
	const struct index_entry *entry = index_find(node[i].control.index, &key);
	struct dir_entry found[2 * BUCKET_ENTRIES];
	unsigned count = shard_find(node[owner].control.shard, &key, found, 2 * BUCKET_ENTRIES);

	for (unsigned f = 0; entry && f < count; f++)
		if (found[f].ref == node[i].control.ref && found[f].place == entry->place &&
			found[f].generation == entry->generation)
			return 1;
	return 0;
}

unsigned found_at_owners(unsigned reader, unsigned i, uint64_t number)
{
	struct page_key key = key_of(number);
	struct map_owners owners;
	unsigned found = 0;

	if (!map_owners_load(&node[reader].control.status->map, map_slot_of(&key), &owners))
		abort(); /* nothing writes meanwhile */
	for (unsigned o = 0; o < owners.owners; o++)
		for (unsigned n = 0; n < NODES; n++)
			if (node[n].open && node[n].control.ref == owners.member[o].ref)
				found += found_in(n, i, number);
	return found;
}

unsigned found_anywhere(unsigned i, uint64_t number)
{
	unsigned found = 0;

	for (unsigned n = 0; n < NODES; n++)
		if (node[n].open)
			found += found_in(n, i, number);
	return found;
}

/* ---- raw connections ------------------------------------------------------------------------- */

int raw_open(unsigned i)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
		.sin_port = htons(port_of[i]),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
		close(fd);
		return -1;
	}
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

void raw_bytes(int fd, const void *bytes, size_t count)
{
	const char *at = bytes;

	for (unsigned tries = 0; count && tries < 10000; tries++) {
		ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);

		if (sent > 0) {
			at += sent;
			count -= (size_t)sent;
		} else if (errno != EAGAIN) {
			return;
		}
		nodes_turn();
	}
}

void raw_message(int fd, const Pc__Message *message)
{
	size_t bytes = pc__message__get_packed_size(message);
	uint8_t *frame = malloc(bytes + 4);
	uint32_t length = htonl((uint32_t)bytes);

	memcpy(frame, &length, 4);
	pc__message__pack(message, frame + 4);
	raw_bytes(fd, frame, bytes + 4);
	free(frame);
}

void raw_beat(int fd)
{
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_HEARTBEAT, &beat);

	beat.members_digest = node[0].control.members->digest;
	raw_message(fd, &message);
}

void raw_record(int fd, Pc__Member *member, enum record_state state, uint32_t admission)
{
	Pc__MemberRecord record = PC__MEMBER_RECORD__INIT, *at = &record;
	Pc__MemberNews news = PC__MEMBER_NEWS__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_MEMBER_NEWS, &news);

	record.member = member;
	record.state = state;
	record.admission = admission;
	news.n_records = 1;
	news.records = &at;
	raw_message(fd, &message);
}

void raw_hello(int fd, const char *name, uint64_t incarnation, uint16_t port, Pc__Member *extra)
{
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	self.name = (char *)name;
	self.incarnation = incarnation;
	self.address = "127.0.0.1";
	self.port = port;
	self.rails = 2;
	self.bucket_bits = 10;
	hello.version = WIRE_VERSION;
	hello.self = &self;
	member_agree_say(&node[0].control, &hello);
	if (extra) {
		hello.n_members = 1;
		hello.members = &extra;
	}
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	raw_message(fd, &message);
}

size_t raw_read(int fd, void *bytes, size_t room, unsigned ms)
{
	ssize_t got = -1;

	(void)nodes_until((got = recv(fd, bytes, room, 0)) > 0, ms);
	return got > 0 ? (size_t)got : 0;
}

Pc__Message *raw_await(int fd, Pc__Message__BodyCase kind, unsigned ms)
{
	static uint8_t bytes[1 << 17];
	size_t have = 0, got;

	while ((got = raw_read(fd, bytes + have, sizeof(bytes) - have, ms)) > 0) {
		size_t at = 0;
		uint32_t length;

		for (have += got; have - at >= 4; at += 4 + length) {
			Pc__Message *m;

			memcpy(&length, bytes + at, 4);
			length = ntohl(length);
			if (have - at - 4 < length)
				break;
			m = pc__message__unpack(NULL, length, bytes + at + 4);
			if (m && m->body_case == kind)
				return m;
			pc__message__free_unpacked(m, NULL);
		}
		memmove(bytes, bytes + at, have - at);
		have -= at;
	}
	return NULL;
}

bool raw_closed(int fd, unsigned ms)
{
	char bytes[4096];
	ssize_t got = -1;

	return nodes_until(
		((got = recv(fd, bytes, sizeof(bytes), 0)) == 0 || (got < 0 && errno != EAGAIN)),
		ms);
}
