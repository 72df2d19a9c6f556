/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes bytes from the network: the frame decoder and everything that serves a message. Bit 0 of
 * the first byte says whether the sender is a member already (a valid Hello is then sent first);
 * the rest is sent over the connection. Runs with libFuzzer when built for it; otherwise main()
 * replays a small corpus: whole, cut short, and with bytes changed. One thread.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/abi/epoch.h"
#include "engine/abi/wire.h"
#include "tests/unit/control/test_rpc_nodes.h"

#define FUZZ_INCARNATION 0x4200000042ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t frame_of(const Pc__Message *message, uint8_t *ret, size_t room)
{
	size_t bytes = pc__message__get_packed_size(message);
	uint32_t length = htonl((uint32_t)bytes);

	if (bytes + 4 > room)
		abort();
	memcpy(ret, &length, 4);
	pc__message__pack(message, ret + 4);
	return bytes + 4;
}

static void open_once(void)
{
	if (node[0].open)
		return;
	log_level_set(LOG_ERROR);
	nodes_setup(1000, 5000);
	if (node_open(0, NULL) < 0)
		abort();
	node[0].control.view->own.made = 1;
}

/*
 * Builds the frame of a Hello. `other`: the Hello has settings and a hash that the engine refuses.
 */
static size_t hello_frame(bool other, uint8_t *ret, size_t room)
{
	char *agreed[] = {"cluster.id = other", "cluster.replicas = 3", "", "cluster.id"};
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	self.name = "fuzz";
	self.incarnation = FUZZ_INCARNATION;
	self.address = "127.0.0.1";
	self.port = 1;
	self.rails = 2;
	self.bucket_bits = 10;
	hello.version = WIRE_VERSION;
	hello.self = &self;
	member_agree_say(&node[0].control, &hello);
	if (other) {
		hello.agreed_hash++;
		hello.agreed = agreed;
		hello.n_agreed = sizeof(agreed) / sizeof(agreed[0]);
	}
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	return frame_of(&message, ret, room);
}

static unsigned summaries_taken;

/* Whatever a summary says, what the view keeps of it is within limits. */
static void check_view(void)
{
	const struct view *view = node[0].control.view;

	for (unsigned i = 0; i < MEMBER_ENTRIES; i++) {
		const struct view_row *row = &view->row[i];

		if (!row->answered_ns)
			continue;
		summaries_taken++;
		if (row->summary.severity > SEVERITY_CRITICAL || row->summary.pool_used > 1000 ||
			row->summary.finding[SUMMARY_FINDING_BYTES - 1] != '\0')
			abort();
	}
}

/* A page is watched: each member is asked at once, so that a summary of it is taken. */
static void watch(void)
{
	struct view *view = node[0].control.view;

	memset(view->row, 0, sizeof(view->row));
	memset(view->asked_ns, 0, sizeof(view->asked_ns));
	view_tick(&node[0].control, clock_now_ns(), clock_now_ns());
}

static void feed(int fd, const uint8_t *bytes, size_t count)
{
	for (unsigned tries = 0; count && tries < 1000; tries++) {
		ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (sent > 0) {
			bytes += sent;
			count -= (size_t)sent;
		}
		nodes_turn();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t hello[1024];
	int fd[2];

	open_once();
	if (size == 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) < 0)
		return 0;
	if (!rpc_link_open(&node[0].control, net_adopt(node[0].control.base, fd[0]), NULL, "fuzz"))
		abort();
	if (data[0] & 1) {
		feed(fd[1], hello, hello_frame(false, hello, sizeof(hello)));
		watch();
	}
	feed(fd[1], data + 1, size - 1);
	for (unsigned i = 0; i < 3; i++)
		nodes_turn();
	check_view();
	close(fd[1]);
	for (unsigned i = 0; i < 3; i++)
		nodes_turn();
	if (node[0].control.rpc->accepted != 0 || node[0].control.members->alive != 1)
		abort();
	return 0;
}

#ifndef FUZZ_LIBFUZZER

#define CORPORA_MAX 42

static uint8_t corpus[CORPORA_MAX][12288];
static size_t corpus_bytes[CORPORA_MAX];
static unsigned corpora;

static void corpus_add(bool member, const Pc__Message *message)
{
	if (corpora + 2 >= CORPORA_MAX) /* two Hellos follow */
		abort();
	corpus[corpora][0] = member;
	corpus_bytes[corpora] = 1 + frame_of(message, corpus[corpora] + 1, sizeof(corpus[0]) - 1);
	corpora++;
}

static void corpus_directory(void)
{
	Pc__Entry entry = PC__ENTRY__INIT, *entries[3] = {&entry, &entry, &entry};
	Pc__Publish publish = PC__PUBLISH__INIT;
	Pc__Remove remove = PC__REMOVE__INIT;
	Pc__Forget forget = PC__FORGET__INIT;
	Pc__Touch touch = PC__TOUCH__INIT;
	Pc__Ack ack = PC__ACK__INIT;
	Pc__Message m = PC__MESSAGE__INIT;
	uint32_t numbers[] = {0, 1, 2};

	entry.key0 = 1;
	entry.key1 = 2;
	entry.place = 3;
	entry.generation = 4;
	entry.ref = 5;
	m.body_case = PC__MESSAGE__BODY_PUBLISH;
	m.publish = &publish;
	publish.serial = 1;
	publish.ref = (uint32_t)FUZZ_INCARNATION;
	publish.n_entries = 3;
	publish.entries = entries;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_REMOVE;
	m.remove = &remove;
	remove.n_entries = 3;
	remove.entries = entries;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_FORGET;
	m.forget = &forget;
	forget.n_entries = 3;
	forget.entries = entries;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_TOUCH;
	m.touch = &touch;
	touch.n_places = 3;
	touch.places = numbers;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_ACK;
	m.ack = &ack;
	ack.serial = 1;
	ack.n_failed = 3;
	ack.failed = numbers;
	corpus_add(true, &m);
}

static void corpus_connect(void)
{
	struct dv_address address = {.version = 1, .kind = 3};
	Pc__QpEnd end = PC__QP_END__INIT, *ends = &end;
	Pc__RegionKey region = PC__REGION_KEY__INIT, *regions = &region;
	Pc__Connect connect = PC__CONNECT__INIT;
	Pc__Connected connected = PC__CONNECTED__INIT;
	Pc__Disconnect disconnect = PC__DISCONNECT__INIT;
	Pc__Message m = PC__MESSAGE__INIT;

	end.address.len = sizeof(address);
	end.address.data = (uint8_t *)&address;
	region.region = 1;
	region.address = 4096;
	region.length = 4096;
	m.body_case = PC__MESSAGE__BODY_CONNECT;
	m.connect = &connect;
	connect.incarnation = 1;
	connect.n_ends = 1;
	connect.ends = &ends;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_CONNECTED;
	m.connected = &connected;
	connected.serial = 1;
	connected.n_ends = 1;
	connected.ends = &ends;
	connected.n_regions = 1;
	connected.regions = &regions;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_DISCONNECT;
	m.disconnect = &disconnect;
	corpus_add(true, &m);
}

static void corpus_summary(void)
{
	struct summary data = {.made = 1, .finding = "rail_down"};
	Pc__SummaryAsk ask = PC__SUMMARY_ASK__INIT;
	Pc__Summary summary = PC__SUMMARY__INIT;
	Pc__Message m = PC__MESSAGE__INIT;

	m.body_case = PC__MESSAGE__BODY_SUMMARY_ASK;
	m.summary_ask = &ask;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_SUMMARY;
	m.summary = &summary;
	summary.data.len = sizeof(data);
	summary.data.data = (uint8_t *)&data;
	corpus_add(true, &m);
}

static void corpus_members(void)
{
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;
	Pc__Leave leave = PC__LEAVE__INIT;
	Pc__Epochs epochs = PC__EPOCHS__INIT;
	uint32_t groups[] = {EPOCH_ALL, 7};
	uint64_t raised[] = {1ull << 32 | 5, 2ull << 32 | 6};
	Pc__Clear clear = PC__CLEAR__INIT;
	Pc__Cleared cleared = PC__CLEARED__INIT;
	Pc__DigestAsk digest_ask = PC__DIGEST_ASK__INIT;
	Pc__Digest digest = PC__DIGEST__INIT;
	uint64_t sums[16] = {1, 2, 3};
	Pc__EntriesAsk entries_ask = PC__ENTRIES_ASK__INIT;
	Pc__Entries shown = PC__ENTRIES__INIT;
	Pc__Entry entry = PC__ENTRY__INIT, *entries = &entry;
	static uint8_t slots[MAP_SLOTS / 8] = {0xff, 0xff};
	Pc__Message m = PC__MESSAGE__INIT;

	m.body_case = PC__MESSAGE__BODY_HEARTBEAT;
	m.heartbeat = &beat;
	beat.members_digest = 1;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_LEAVE;
	m.leave = &leave;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_DIGEST_ASK;
	m.digest_ask = &digest_ask;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_DIGEST;
	m.digest = &digest;
	digest.sums = sums;
	digest.n_sums = sizeof(sums) / sizeof(sums[0]);
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_ENTRIES_ASK;
	m.entries_ask = &entries_ask;
	entries_ask.slots = (ProtobufCBinaryData){sizeof(slots), slots};
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_ENTRIES;
	m.entries = &shown;
	entry.key1 = 1;
	shown.entries = &entries;
	shown.n_entries = 1;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_EPOCHS;
	m.epochs = &epochs;
	epochs.groups = groups;
	epochs.epochs = raised;
	epochs.n_groups = epochs.n_epochs = 2;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_CLEAR;
	m.clear = &clear;
	clear.serial = 1;
	corpus_add(true, &m);
	m.body_case = PC__MESSAGE__BODY_CLEARED;
	m.cleared = &cleared;
	corpus_add(true, &m);
	for (unsigned other = 0; other < 2; other++, corpora++)
		corpus_bytes[corpora] =
			1 + hello_frame(other, corpus[corpora] + 1, sizeof(corpus[0]) - 1);
}

/* A summary was sent and one was taken. Few changes of a message lead to either. */
static bool summaries_seen(void)
{
	return node[0].control.counter[COUNTER_summaries_sent] && summaries_taken;
}

static void replay_changed(unsigned c)
{
	uint8_t changed[sizeof(corpus[0])];

	memcpy(changed, corpus[c], corpus_bytes[c]);
	for (unsigned n = (unsigned)random() % 4; n < 4; n++)
		changed[(size_t)random() % corpus_bytes[c]] = (uint8_t)random();
	LLVMFuzzerTestOneInput(changed, corpus_bytes[c]);
}

/*
 * Replays the corpus of stored inputs: each whole, cut short at one place in four, and changed 40
 * times, and more often until summaries were seen; with --long cut short at every place, and
 * changed 500 times. The environment variable SEED repeats the run that printed it.
 */
int main(int argc, char **argv)
{
	bool all = argc > 1 && strcmp(argv[1], "--long") == 0;
	unsigned rounds = all ? 500 : 40, step = all ? 1 : 4;
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

	printf("SEED=%u\n", seed);
	fflush(stdout); /* the seed is known even if the run aborts */
	srandom(seed);
	open_once();
	corpus_directory();
	corpus_connect();
	corpus_summary();
	corpus_members();
	for (unsigned c = 0; c < corpora; c++) {
		LLVMFuzzerTestOneInput(corpus[c], corpus_bytes[c]);
		for (size_t cut = (size_t)random() % step; cut < corpus_bytes[c]; cut += step)
			LLVMFuzzerTestOneInput(corpus[c], cut);
	}
	for (unsigned round = 0; round < rounds || (round < 500 && !summaries_seen()); round++)
		for (unsigned c = 0; c < corpora; c++)
			replay_changed(c);
	printf("replayed %u messages: %llu bad messages, %llu engines refused\n", corpora,
		(unsigned long long)node[0].control.counter[COUNTER_messages_bad],
		(unsigned long long)node[0].control.counter[COUNTER_members_refused]);
	printf("%llu summaries requested, %llu sent, %s taken\n",
		(unsigned long long)node[0].control.counter[COUNTER_summaries_asked],
		(unsigned long long)node[0].control.counter[COUNTER_summaries_sent],
		summaries_taken ? "some" : "none");
	if (!summaries_seen())
		abort();
	nodes_teardown();
	return 0;
}

#endif
