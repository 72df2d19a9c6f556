/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that the test plays over raw connections with node 0: they send heartbeats, and answer
 * probes or not. A node is one control plane in the test's process.
 */
#ifndef TESTS_PROBE_WORLD_H
#define TESTS_PROBE_WORLD_H

#include "tests/unit/control/test_rpc_nodes.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/abi/wire.h"

#define BEAT_MS 20
#define DEAD_MS 300
#define REMOVAL_MS (DEAD_MS + DEAD_MS / 6)
#define TRIAL_MS (DEAD_MS * 5 / 3)
#define LATE_MS 60 /* a few probes and heartbeats */
#define AGAIN_MS (DEAD_MS / PROBE_AGAIN_PART)
#define OWN_REF 0x100u

/* A member that the test plays, on one connection with node 0. */
static struct played {
	const char *name;
	uint64_t incarnation;
	bool serves;                  /* it answers probes */
	bool mute;                    /* it neither sends nor receives */
	bool short_pad;               /* with less than it was sent */
	bool stale;                   /* with another serial */
	const struct played *refutes; /* with each heartbeat: as if it were served by that one */
	int fd;
	uint64_t beat_ns;
	uint8_t in[1 << 17];
	size_t have;
	unsigned probed, padded, acks, claims, beats, publishes;
	bool closed;
} played[2];

#define gray (&played[0])
#define other (&played[1])

static inline void played_fill(const struct played *p, Pc__Member *ret)
{
	ret->name = (char *)p->name;
	ret->incarnation = p->incarnation;
	ret->address = "127.0.0.1";
	ret->port = 9;
	ret->rails = 2;
	ret->bucket_bits = 10;
}

static inline void hello(struct played *p)
{
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello say = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (p->fd >= 0)
		close(p->fd);
	p->fd = raw_open(0);
	p->have = 0;
	p->closed = false;
	played_fill(p, &self);
	say.self = &self;
	member_agree_say(&node[0].control, &say);
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &say;
	raw_message(p->fd, &message);
}

/* What this member says of that one. */
static inline void record(
	struct played *p, const struct played *about, enum record_state state, uint32_t admission)
{
	Pc__Member member = PC__MEMBER__INIT;

	played_fill(about, &member);
	raw_record(p->fd, &member, state, admission);
}

/* It was served by that one, which is claimed. */
static inline void refute(struct played *p, const struct played *about)
{
	const struct member *entry = member_find(node[0].control.members, about->name);

	if (entry && entry->state == MEMBER_ALIVE && entry->stage == RECORD_CLAIMED)
		record(p, about, RECORD_ALIVE, entry->admission + 1);
}

static inline void answer(struct played *p, const Pc__Probe *probe)
{
	Pc__ProbeAck ack = PC__PROBE_ACK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	p->probed++;
	p->padded += probe->pad.len == PROBE_PAD_BYTES;
	assert_int_equal(probe->pad.len, probe->serial & 1 ? PROBE_PAD_BYTES : 0);
	if (!p->serves)
		return;
	ack.serial = probe->serial + (p->stale ? 2 : 0);
	ack.pad = probe->pad;
	ack.pad.len -= p->short_pad && ack.pad.len;
	message.body_case = PC__MESSAGE__BODY_PROBE_ACK;
	message.probe_ack = &ack;
	raw_message(p->fd, &message);
}

/* It stored the entries. */
static inline void acknowledge(struct played *p, const Pc__Publish *publish)
{
	Pc__Ack ack = PC__ACK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	p->publishes++;
	ack.serial = publish->serial;
	message.body_case = PC__MESSAGE__BODY_ACK;
	message.ack = &ack;
	raw_message(p->fd, &message);
}

static inline void take(struct played *p, const uint8_t *bytes, size_t length)
{
	Pc__Message *m = pc__message__unpack(NULL, length, bytes);

	assert_non_null(m);
	if (m->body_case == PC__MESSAGE__BODY_PROBE)
		answer(p, m->probe);
	if (m->body_case == PC__MESSAGE__BODY_PUBLISH)
		acknowledge(p, m->publish);
	p->acks += m->body_case == PC__MESSAGE__BODY_ACK;
	p->beats += m->body_case == PC__MESSAGE__BODY_HEARTBEAT;
	for (size_t i = 0;
		m->body_case == PC__MESSAGE__BODY_MEMBER_NEWS && i < m->member_news->n_records; i++)
		p->claims += m->member_news->records[i]->state == RECORD_CLAIMED;
	pc__message__free_unpacked(m, NULL);
}

static inline void pump(struct played *p)
{
	ssize_t got;

	if (p->fd < 0 || p->closed || p->mute)
		return;
	if (clock_now_ns() - p->beat_ns >= BEAT_MS * 1000000ull) {
		p->beat_ns = clock_now_ns();
		raw_beat(p->fd);
		if (p->refutes)
			refute(p, p->refutes);
	}
	while ((got = recv(p->fd, p->in + p->have, sizeof(p->in) - p->have, 0)) > 0) {
		size_t at = 0;
		uint32_t length;

		p->have += (size_t)got;
		while (p->have - at >= 4) {
			memcpy(&length, p->in + at, 4);
			length = ntohl(length);
			if (p->have - at - 4 < length)
				break;
			take(p, p->in + at + 4, length);
			at += 4 + length;
		}
		memmove(p->in, p->in + at, p->have - at);
		p->have -= at;
	}
	p->closed = got == 0;
}

static inline void turn(void)
{
	pump(gray);
	pump(other);
	nodes_turn();
}

static inline uint64_t now_ms(void)
{
	return clock_now_ns() / 1000000;
}

static inline void run(unsigned ms)
{
	uint64_t until = now_ms() + ms;

	while (now_ms() < until)
		turn();
}

static inline bool on_map(const struct played *p)
{
	return member_by_ref(&node[0].control, (uint32_t)p->incarnation) != NULL;
}

/* Time until the member is on the map or off it; fails after `limit` ms. */
static inline unsigned until_on_map(const struct played *p, bool on, unsigned limit)
{
	uint64_t from = now_ms();

	while (on_map(p) != on && now_ms() < from + limit)
		turn();
	assert_int_equal(on_map(p), on);
	return (unsigned)(now_ms() - from);
}

#endif
