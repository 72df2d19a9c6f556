/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses engines whose Hello is well-formed but does not fit: another wire version, another
 * cluster, other values of the settings that must be equal, rails that cannot reach ours, an
 * address that only its own host can reach, or a name that is taken. Both engines learn of it
 * (member_refuse.c). Control plane's thread only.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/abi/segment.h"
#include "engine/abi/wire.h"
#include "engine/control/members/member.h"

/* The first value that agreed.hash covers. Fixed: engines of all versions from 5 on compare it. */
#define AGREED_HASH_BASIS 5u

static uint64_t text_hash(uint64_t hash, const char *text)
{
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
	return map_mix(hash + 1);
}

/* The kinds of links that the rails have: engines with different kinds reach no page. */
static const char *links_text(const struct control *control)
{
	bool shm = control->settings->soft_link == LINK_SHM, soft = false, rdma = false;

	for (unsigned i = 0; i < control->plan.rails; i++) {
		bool is_soft = strncmp(control->plan.rail[i].device, "soft", 4) == 0;

		soft |= is_soft;
		rdma |= !is_soft;
	}
	if (!soft)
		return rdma ? "RDMA" : "none";
	if (rdma)
		return shm ? "RDMA and soft over shm" : "RDMA and soft over tcp";
	return shm ? "soft over shm" : "soft over tcp";
}

/*
 * A hash of what shared memory of a software NIC reaches: its sockets are those of a network
 * namespace (dv/soft/link_shm.c), and serve one user.
 */
static uint64_t shm_reach(void)
{
	char boot[64] = "", text[160];
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	struct stat net = {0};
	uint64_t hash;

	if (file && !fgets(boot, sizeof(boot), file))
		boot[0] = '\0';
	if (file)
		fclose(file);
	(void)stat("/proc/self/ns/net", &net);
	snprintf(text, sizeof(text), "%s %llu %llu %u", boot, (unsigned long long)net.st_dev,
		(unsigned long long)net.st_ino, (unsigned)geteuid());
	hash = text_hash(0, text);
	return hash ? hash : 1;
}

void member_agree_open(struct control *control)
{
	const struct settings *s = control->settings;
	const char *links = links_text(control);
	struct agreed *agreed = &control->members->agreed;
	unsigned n = 0;

	agreed->shm = strstr(links, "shm") ? shm_reach() : 0;

#define AGREED(name, format, value)                                                                \
	snprintf(agreed->text[n++], AGREED_BYTES_MAX, "%s = " format, name, value);
#include "engine/control/members/agreed.def"
#undef AGREED
	agreed->hash = AGREED_HASH_BASIS;
	for (unsigned i = 0; i < n; i++) {
		agreed->at[i] = agreed->text[i];
		agreed->hash = text_hash(agreed->hash, agreed->text[i]);
	}
}

void member_agree_say(struct control *control, Pc__Hello *hello)
{
	struct agreed *agreed = &control->members->agreed;

	hello->version = WIRE_VERSION_OLDEST;
	hello->newest = WIRE_VERSION;
	hello->abi = ABI_VERSION;
	hello->agreed_hash = agreed->hash;
	hello->shm = agreed->shm;
	hello->n_agreed = AGREED_COUNT;
	hello->agreed = agreed->at;
}

/* ---- versions -------------------------------------------------------------------------------- */

static uint32_t newest_of(const Pc__Hello *hello)
{
	return hello->newest > hello->version ? hello->newest : hello->version;
}

uint32_t member_wire_common(const Pc__Hello *hello)
{
	uint32_t theirs = newest_of(hello);

	if (hello->version > WIRE_VERSION || theirs < WIRE_VERSION_OLDEST)
		return 0;
	return theirs < WIRE_VERSION ? theirs : WIRE_VERSION;
}

/* Writes "5 to 6", or "5" if both are equal. */
static void range_text(uint32_t oldest, uint32_t newest, char ret[32])
{
	if (oldest == newest)
		snprintf(ret, 32, "%u", newest);
	else
		snprintf(ret, 32, "%u to %u", oldest, newest);
}

bool member_agree_version(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	bool probed = hello->version == WIRE_VERSION_MUTE && hello->agreed_hash;
	uint32_t common = member_wire_common(hello);
	char theirs[32], ours[32];

	if (common && !link->probe && !probed)
		return true;
	if (common || probed) {
		/*
		 * The engines have a version in common, and one has sent a probe to the other. A
		 * mismatch is logged elsewhere: by its ordinary Hello or by the engine that sent
		 * the probe.
		 */
		rpc_link_close(link);
		return false;
	}
	range_text(hello->version, newest_of(hello), theirs);
	range_text(WIRE_VERSION_OLDEST, WIRE_VERSION, ours);
	member_refuse(control, &(struct refused_engine){.link = link, .member = hello->self},
		"its wire version is %s, the wire version of this engine is %s. Upgrade the older engine",
		theirs, ours);
	return false;
}

void member_agree_versions(
	const struct rpc_link *link, struct member *member, const Pc__Hello *hello)
{
	uint32_t wire = member_wire_common(hello), abi = hello->abi;
	struct member_texts texts;

	member_texts(&member->record, &texts);
	if (member->contact->wire != wire && newest_of(hello) != WIRE_VERSION)
		log_info(
			"member %s at %s speaks wire version %u at most, this engine %u: both use %u",
			texts.name, link->from, newest_of(hello), WIRE_VERSION, wire);
	if (abi && member->contact->abi != abi && abi != ABI_VERSION)
		log_info(
			"member %s at %s has client ABI version %u, this engine %u. Both work together; a client needs the library of the engine of its own host",
			texts.name, link->from, abi, ABI_VERSION);
	member->contact->wire = wire;
	member->contact->abi = abi;
}

/* ---- values that must be equal --------------------------------------------------------------- */

static bool text_prints(const char *text)
{
	size_t bytes = strnlen(text, AGREED_BYTES_MAX);

	for (size_t i = 0; i < bytes; i++)
		if (text[i] < ' ' || text[i] > '~')
			return false;
	return bytes > 0 && bytes < AGREED_BYTES_MAX;
}

/*
 * Returns the length of "name = " in "name = value", or of the whole text if it contains no " = ".
 */
static size_t name_bytes(const char *text)
{
	const char *value = strstr(text, " = ");

	return value ? (size_t)(value - text) + 3 : strlen(text);
}

/*
 * Returns the value in `hello` that has the same name as `ours`; NULL: the Hello has no value of
 * that name.
 */
static const char *their_value(const Pc__Hello *hello, const char *ours)
{
	size_t name = name_bytes(ours);

	for (size_t i = 0; i < hello->n_agreed && i < AGREED_ENTRIES_MAX; i++)
		if (text_prints(hello->agreed[i]) && strncmp(hello->agreed[i], ours, name) == 0)
			return hello->agreed[i] + name;
	return NULL;
}

/* Writes the list of the values that differ, as "cluster.replicas = 1 there, 2 here; ..." */
static void differences(
	const struct agreed *agreed, const Pc__Hello *hello, char *ret, size_t ret_bytes)
{
	size_t used = 0;

	*ret = '\0';
	for (unsigned i = 0; i < AGREED_COUNT && used < ret_bytes; i++) {
		const char *ours = agreed->text[i], *theirs = their_value(hello, ours);
		int n;

		if (theirs && strcmp(theirs, ours + name_bytes(ours)) == 0)
			continue;
		n = snprintf(ret + used, ret_bytes - used, "%s%.*s%s there, %s here",
			used ? "; " : "", (int)name_bytes(ours), ours, theirs ? theirs : "unknown",
			ours + name_bytes(ours));
		used += n > 0 ? (size_t)n : 0;
	}
	if (*ret == '\0')
		snprintf(ret, ret_bytes, "a value that only one of the two engines knows");
}

/* ---- addresses ------------------------------------------------------------------------------- */

/*
 * A host name counts as local only if it is our own cluster.address and we listen on a loopback
 * address; other names are not resolved here.
 */
bool member_address_local(const struct control *control, const char *address)
{
	return address_text_loopback(address) ||
	       (control->rpc->loopback && strcmp(address, control->settings->cluster_address) == 0);
}

/*
 * A loopback address reaches only the engine on its own host. If an engine advertised one to
 * another host, that host would dial itself or a different engine: members would join and die
 * forever.
 */
static bool address_agrees(struct control *control, struct rpc_link *link, const Pc__Member *m)
{
	bool theirs = member_address_local(control, m->address), ours = control->rpc->loopback;

	if (theirs == ours && !(ours && link->far))
		return true;
	member_refuse(control, &(struct refused_engine){.link = link, .member = m},
		"cluster.address is %s there and %s here, and a loopback address reaches no other host. Set cluster.address %s to an address that other hosts reach",
		m->address, control->settings->cluster_address,
		theirs && ours ? "on both"
		: theirs       ? "there"
			       : "here");
	return false;
}

/* Shared memory reaches engines of one host, and of those not all. */
static bool shm_agrees(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const Pc__Member *m = hello->self;
	char address[ADDRESS_TEXT_BYTES];

	if (hello->shm == control->members->agreed.shm)
		return true;
	member_refuse(control, &(struct refused_engine){.link = link, .member = m},
		"soft.link = shm there and here, and %s (%s) is on another host, in another network namespace or of another user: shared memory does not reach it. Set soft.link = tcp on every engine",
		m->name, address_text(m->address, m->port, address));
	return false;
}

/* ---- names ----------------------------------------------------------------------------------- */

/*
 * Refuses an engine that could be confused with another one: by its name, or by its ref, which
 * identifies members in directory entries.
 */
static bool hello_collides(struct control *control, struct rpc_link *link, const Pc__Member *m)
{
	const struct member_record *other = member_by_ref(control, (uint32_t)m->incarnation);
	const struct member *member = member_find(control->members, m->name);
	const struct refused_engine who = {.link = link, .member = m, .name_taken = true};
	char theirs[ADDRESS_TEXT_BYTES], ours[ADDRESS_TEXT_BYTES];
	struct member_texts texts;

	address_text(m->address, m->port, theirs);
	if (strcmp(m->name, control->name) == 0) {
		member_refuse(control, &who,
			"it (%s) has this engine's name, %s. Set another engine.name there or here",
			theirs, control->name);
		return true;
	}
	/* An engine that was restarted warm has its old name and its old ref. */
	if (other && !member_is_named(other, m->name)) {
		member_texts(other, &texts);
		if (other->self && control->kept_ref)
			/* a restart chooses another one, also a warm one */
			shm_store(control->kept_ref, 0);
		member_refuse(control, &who,
			"%s (%s) has an incarnation whose low half, %08x, is that of %s. Restart one of them",
			m->name, theirs, other->ref, texts.name);
		return true;
	}
	if (!member)
		return false;
	member_texts(&member->record, &texts);
	if (member->state == MEMBER_ALIVE && member_link_of(member) &&
		member->record.incarnation != m->incarnation &&
		(member->record.port != m->port || strcmp(texts.address, m->address) != 0)) {
		address_text(texts.address, member->record.port, ours);
		member_refuse(control, &who,
			"its name, %s (%s), is that of a live engine at %s. Set another engine.name",
			m->name, theirs, ours);
		return true;
	}
	return false;
}

bool member_agree(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct agreed *agreed = &control->members->agreed;
	const Pc__Member *m = hello->self;
	char text[512], address[ADDRESS_TEXT_BYTES];

	if (hello->agreed_hash != agreed->hash) {
		differences(agreed, hello, text, sizeof(text));
		address_text(m->address, m->port, address);
		member_refuse(control, &(struct refused_engine){.link = link, .member = m},
			"%s (%s) has %s. Make it equal on every engine of the cluster, or take the engine of another cluster out of cluster.seeds",
			m->name, address, text);
		return false;
	}
	return shm_agrees(control, link, hello) && address_agrees(control, link, m) &&
	       !hello_collides(control, link, m);
}
