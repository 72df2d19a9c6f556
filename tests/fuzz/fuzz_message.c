/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes bytes from the network: the frame decoder and everything that serves a message, and what
 * an engine with a key reads before it knows the sender. The first byte says what comes before the
 * rest, which is sent over the connection. Bit 0: a valid Hello, the sender is a member. Bit 1: to
 * the engine with a key, with bit 0 after a handshake with that key; no message may come of it.
 * Runs with libFuzzer when built for it; otherwise main() replays a small corpus: whole, cut short,
 * and with bytes changed. One thread, and the engine's own that reads the key.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/abi/epoch.h"
#include "engine/abi/wire.h"
#include "config/psk.h"
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

/* ---- an engine with a key -------------------------------------------------------------------- */

static struct psk_file keys; /* a key that the client takes, and one that it does not have */
static SSL_CTX *client;      /* that of a stranger, with the key that `key` is */
static unsigned key;

static int key_use(SSL *ssl, const EVP_MD *md, const unsigned char **ret_id, size_t *ret_bytes,
	SSL_SESSION **ret_session)
{
	static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
	static char identity[17];
	SSL_SESSION *session = SSL_SESSION_new();

	(void)md;
	snprintf(identity, sizeof(identity), "%016" PRIx64, keys.key[key].id);
	*ret_id = (const unsigned char *)identity;
	*ret_bytes = 16;
	*ret_session = session;
	return session && SSL_SESSION_set1_master_key(session, keys.key[key].bytes, PSK_BYTES) &&
	       SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, aes_128_gcm_sha256)) &&
	       SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) &&
	       SSL_SESSION_set_max_early_data(session, 4096);
}

static SSL *client_new(void)
{
	SSL *ssl = SSL_new(client);

	if (!ssl)
		abort();
	SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
	SSL_set_connect_state(ssl);
	return ssl;
}

static char path[64];

static void path_remove(void)
{
	unlink(path);
}

static void open_secured(void)
{
	char why[PSK_WHY_BYTES];

	snprintf(path, sizeof(path), "/tmp/fuzz_message.%d", getpid());
	if (!psk_file_make(path) || psk_file_read(path, &keys, why) < 0)
		abort();
	snprintf(node[1].settings.cluster_psk_file, sizeof(node[1].settings.cluster_psk_file), "%s",
		path);
	if (node_open(1, NULL) < 0)
		abort();
	atexit(path_remove);
	keys.key[1].id = keys.key[0].id + 4;
	client = SSL_CTX_new(TLS_client_method());
	if (!client || SSL_CTX_set_min_proto_version(client, TLS1_3_VERSION) != 1)
		abort();
	SSL_CTX_set_psk_use_session_callback(client, key_use);
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
	open_secured();
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

/* The whole handshake with the key of the engine. */
static void handshake(int fd)
{
	SSL *ssl = client_new();
	unsigned char wire[16384];
	int done = 0;

	key = 0;
	for (unsigned tries = 0; tries < 1000 && done != 1; tries++) {
		ssize_t got;
		int out;

		done = SSL_do_handshake(ssl);
		while ((out = BIO_read(SSL_get_wbio(ssl), wire, sizeof(wire))) > 0)
			feed(fd, wire, (size_t)out);
		nodes_turn();
		while ((got = recv(fd, wire, sizeof(wire), MSG_DONTWAIT)) > 0)
			BIO_write(SSL_get_rbio(ssl), wire, (int)got);
	}
	SSL_free(ssl);
	if (done != 1)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t hello[1024];
	struct control *control;
	int fd[2];

	open_once();
	if (size == 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) < 0)
		return 0;
	control = &node[(data[0] & 2) != 0].control;
	if (!rpc_link_open(control, net_adopt(control->base, fd[0]), NULL, "fuzz"))
		abort();
	if ((data[0] & 3) == 3) {
		handshake(fd[1]);
	} else if (data[0] & 1) {
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
	if (control->rpc->accepted != 0 || control->members->alive != 1 ||
		node[1].control.counter[COUNTER_messages_in])
		abort();
	return 0;
}

#ifndef FUZZ_LIBFUZZER

#define CORPORA_MAX 48

static uint8_t corpus[CORPORA_MAX][12288];
static size_t corpus_bytes[CORPORA_MAX];
static unsigned corpora;

static void corpus_add(bool member, const Pc__Message *message)
{
	if (corpora + 8 >= CORPORA_MAX) /* two Hellos and what TLS has follow */
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

/*
 * The first bytes of strangers with the key, one that is no key, the key and a Hello as early data,
 * and no key; and records.
 */
static void corpus_secured(void)
{
	static const uint8_t records[2][32] = {
		{3, 0x17, 3, 3, 0, 26, 1}, {3, 0x15, 3, 3, 0, 2, 1, 0, 0x16, 3, 3, 0, 4, 1}};

	for (unsigned kind = 0; kind < 4; kind++, corpora++) {
		SSL *ssl = client_new();
		uint8_t hello[1024];
		size_t early = 0;

		key = kind & 1;
		if (kind == 3)
			SSL_set_psk_use_session_callback(ssl, NULL);
		if (kind == 2 && SSL_write_early_data(ssl, hello,
					 hello_frame(false, hello, sizeof(hello)), &early) != 1)
			abort();
		if (kind != 2)
			(void)SSL_do_handshake(ssl);
		corpus[corpora][0] = 2;
		corpus_bytes[corpora] = 1 + (size_t)BIO_read(SSL_get_wbio(ssl), corpus[corpora] + 1,
						    sizeof(corpus[0]) - 1);
		SSL_free(ssl);
	}
	for (unsigned i = 0; i < 2; i++, corpora++) {
		memcpy(corpus[corpora], records[i], sizeof(records[i]));
		corpus_bytes[corpora] = sizeof(records[i]);
	}
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
	corpus_secured();
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
	printf("%llu strangers refused\n",
		(unsigned long long)node[1].control.counter[COUNTER_strangers_refused]);
	if (!summaries_seen() || !node[1].control.counter[COUNTER_strangers_refused])
		abort();
	SSL_CTX_free(client);
	nodes_teardown();
	return 0;
}

#endif
