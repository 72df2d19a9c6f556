/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dials the seeds, and exchanges those of a source whose list has changed. Control plane's thread
 * only.
 */
#include <string.h>

#include "engine/control/members/member.h"

static bool same_address(const struct seed_address *a, const struct seed_address *b)
{
	return a->port == b->port && strcmp(a->host, b->host) == 0;
}

static bool listed(
	const struct seed_address *wanted, const struct seed_address *address, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (same_address(&address[i], wanted))
			return true;
	return false;
}

/* The element of these SEEDS_MAX that has the address; NULL: none has. host "": a free element. */
static struct member_seed *seed_find(struct member_seed *seed, const struct seed_address *address)
{
	for (unsigned i = 0; i < SEEDS_MAX; i++)
		if (same_address(&seed[i].address, address))
			return &seed[i];
	return NULL;
}

/*
 * Fills the elements of a source from its list. Elements whose address is not in it are freed, and
 * if it has more addresses than elements, those that do not answer.
 */
static void seeds_fill(struct control *control, enum seed_source source)
{
	struct members *members = control->members;
	struct member_seed *seed = &members->seed[source * SEEDS_MAX];
	const struct seed_address *address = members->list[source].address;
	unsigned count = members->list[source].count, start = count ? net_random() % count : 0;

	for (unsigned i = 0; i < SEEDS_MAX; i++) {
		bool mute = count > SEEDS_MAX && seed[i].dial && seed[i].dial->fails > 0;

		if (listed(&seed[i].address, address, count) && !mute)
			continue;
		rpc_dial_stop(seed[i].dial);
		memset(&seed[i], 0, sizeof(seed[i]));
	}
	for (unsigned i = 0; i < count; i++) {
		const struct seed_address *each = &address[(start + i) % count];
		struct member_seed *room = seed_find(seed, &(struct seed_address){0});

		if (!room)
			break;
		if (!seed_find(seed, each))
			seed_set(room, each, control->settings);
	}
}

/* Of lists that are longer than what is dialled at a time, the next addresses get their turn. */
static void seeds_rotate(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;

	if (members->alive > 1 && now_ns - members->rotated_ns < MEMBER_ROTATE_NS)
		return;
	members->rotated_ns = now_ns;
	for (unsigned source = 0; source < SEED_SOURCES; source++)
		if (members->list[source].count > SEEDS_MAX)
			seeds_fill(control, source);
}

void member_seeds_tick(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	uint32_t beat_ms = (uint32_t)control->settings->cluster_heartbeat_ms;

	seeds_watch(control, now_ns);
	if (control->exporting)
		return;
	seeds_rotate(control, now_ns);
	for (unsigned i = 0; i < SEED_SOURCES * SEEDS_MAX; i++) {
		struct member_seed *seed = &members->seed[i];
		const struct member *member;

		if (!seed->address.host[0] || seed->self || seed->dial || now_ns < seed->retry_ns)
			continue;
		member = seed->name[0] ? member_find(members, seed->name) : NULL;
		if (member && (member->state == MEMBER_ALIVE || member->state == MEMBER_CANDIDATE))
			continue;
		seed->dial =
			rpc_dial_start(control, &(struct rpc_target){.host = seed->address.host,
							.port = seed->address.port,
							.base_ms = beat_ms / 10 + 1,
							.max_ms = beat_ms * 10,
							.owner = seed,
							.seed = true});
	}
}

/* A seed that may lead to a member, and that has not answered. */
static bool seed_is_open(const struct member_seed *seed)
{
	return seed->address.host[0] && !seed->self && !seed->retry_ns && !seed->name[0];
}

bool member_seeking(const struct control *control)
{
	const struct members *members = control->members;

	uint64_t opening_ns = (uint64_t)control->settings->cluster_dead_after_ms * 1000000ull;

	if (members->candidates)
		return true;
	if (members->alive > 1 && net_now() - members->opened_ns > opening_ns)
		return false;
	if ((control->settings->cluster_seeds_file[0] && !members->list[SEED_FILE].address) ||
		(control->settings->cluster_etcd[0] && !members->list[SEED_ETCD].address))
		return true;
	for (unsigned i = 0; i < SEED_SOURCES * SEEDS_MAX; i++)
		if (seed_is_open(&members->seed[i]))
			return true;
	return false;
}

void member_seeds_replace(struct control *control, enum seed_source source,
	const struct seed_address *address, unsigned count)
{
	control->members->list[source].address = address;
	control->members->list[source].count = count;
	member_source_read(control, source, NULL);
	seeds_fill(control, source);
	member_seeds_tick(control, net_now());
}
