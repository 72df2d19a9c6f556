/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hello: how two engines meet. Each end sends its name, its version and the values that must be
 * equal (agreed.def) in the first message on a link. An engine that does not fit is refused:
 * another wire version or cluster, other values, rails that cannot reach ours, an address that only
 * its own host can reach, a name that is taken. Both ends know: the engine that refuses sends the
 * reason in a Hello. A refusal is remembered as long as it repeats, and its line is logged once. An
 * engine that fits becomes a member, unless it is on trial (member_probe.c).
 *
 * Every field that comes from the network is checked before it is used; a Hello that breaks a rule
 * closes its link. Control plane's thread only.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/abi/wire.h"
#include "engine/control/members/members.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"
#include "engine/control/net/secure.h"

/*
 * time after which a seed that led to this engine itself is dialled again: its DNS name may change
 */
#define MEMBER_SELF_RETRY_NS (30ull * 1000000000)
#define REFUSAL_GAP_NS (600ull * 1000000000) /* the longest pause between two attempts */

/* Who is refused, and over which link. */
struct refused_engine {
	struct rpc_link *link;    /* NULL: another engine has named it */
	const Pc__Member *member; /* what it says of itself; NULL: it cannot be understood */
	bool name_taken;          /* its name is that of another engine */
	bool logged;              /* by the caller */
	bool tell; /* only this end has the reason: it is sent also to an engine that was dialled */
	uint64_t shared; /* engines with this number share a refusal; 0: it has its own */
};

/* ---- what must be equal ---------------------------------------------------------------------- */

static uint64_t agreed_text_hash(uint64_t hash, const char *text)
{
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
	return map_mix(hash + 1);
}

/* The kinds of links that the rails have: engines with different kinds reach no page. */
static const char *agreed_links_text(const struct control *control)
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
static uint64_t agreed_shm_reach(void)
{
	char boot[64] = "", text[160];
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	struct stat net = {0};

	if (file && !fgets(boot, sizeof(boot), file))
		boot[0] = '\0';
	if (file)
		fclose(file);
	(void)stat("/proc/self/ns/net", &net);
	snprintf(text, sizeof(text), "%s %llu %llu %u", boot, (unsigned long long)net.st_dev,
		(unsigned long long)net.st_ino, (unsigned)geteuid());
	return agreed_text_hash(0, text);
}

static void agreed_links_set(struct agreed *agreed, const char *links)
{
	snprintf(agreed->text[AGREED_LINKS], AGREED_BYTES_MAX,
		"links of rails (rail.devices, soft.link) = %s", links);
}

void member_agree_open(struct control *control)
{
	const struct settings *s = control->settings;
	const char *links = agreed_links_text(control);
	struct agreed *agreed = &control->members->agreed;
	unsigned n = 0;

#define AGREED(name, format, value)                                                                \
	snprintf(agreed->text[n++], AGREED_BYTES_MAX, "%s = " format, name, value);
#include "engine/control/members/agreed.def"
#undef AGREED
	agreed_links_set(agreed, links);
	agreed->links = agreed_text_hash(strstr(links, "shm") ? agreed_shm_reach() : 0, links);
	agreed->hash = 0;
	for (unsigned i = 0; i < AGREED_TEXTS; i++) {
		agreed->at[i] = agreed->text[i];
		if (i != AGREED_LINKS)
			agreed->hash = agreed_text_hash(agreed->hash, agreed->text[i]);
	}
}

void member_agree_say(struct control *control, Pc__Hello *hello)
{
	struct agreed *agreed = &control->members->agreed;

	hello->version = WIRE_VERSION;
	hello->agreed_hash = agreed->hash;
	hello->links = agreed->links;
	hello->n_agreed = AGREED_TEXTS;
	hello->agreed = agreed->at;
}

/* ---- sending a Hello ------------------------------------------------------------------------- */

/* Members in one Hello, at most. The list in pages names all. */
#define HELLO_MEMBERS_MAX 256
/* with all epochs, of 4 and 8 bytes each */
static_assert(HELLO_MEMBERS_MAX * 3 * NAME_BYTES_MAX + 12 * (EPOCHS_MAX + 1) < RPC_HELLO_BYTES_MAX,
	"a Hello fits");

/* `refusal`: the reason why the other engine is refused; NULL: it is not. */
static void hello_send(struct control *control, struct rpc_link *link, const char *refusal)
{
	const struct member *to = link->member;
	Pc__Hello hello = PC__HELLO__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_HELLO, &hello);
	struct member_list list;
	struct member_texts texts;
	Pc__Member self;

	if (!to && link->dial && !link->dial->seed)
		to = link->dial->owner;
	member_describe(control->members->self, &texts, &self);
	hello.self = &self;
	hello.term = to ? to->term_ours : 0;
	hello.visit = link->dial && link->dial->seed;
	hello.software = control->members->self->contact->software;
	control->member_events->say(control, &hello);
	member_agree_say(control, &hello);
	if (refusal) {
		hello.refusal = (char *)refusal;
	} else {
		member_list_alive(control, &list);
		hello.n_members = list.count < HELLO_MEMBERS_MAX ? list.count : HELLO_MEMBERS_MAX;
		hello.members = list.at;
	}
	(void)rpc_send(link, &message);
}

void member_greet(struct control *control, struct rpc_link *link)
{
	hello_send(control, link, NULL);
}

/*
 * Sends a last Hello, so that the other engine knows which engine it reached, or why it is refused,
 * and closes the link.
 */
static void hello_last(struct control *control, struct rpc_link *link, const char *refusal)
{
	hello_send(control, link, refusal);
	net_push(link->net);
	rpc_link_close(link);
}

/* ---- engines that are refused ---------------------------------------------------------------- */

/* A refusal lasts while attempts repeat: for three of the last pause between two. */
static bool refusal_lasts(const struct refusal *refusal, uint64_t now_ns)
{
	uint64_t lasts_ns = 3 * refusal->gap_ns;

	if (lasts_ns < REFUSAL_LASTS_NS)
		lasts_ns = REFUSAL_LASTS_NS;
	return refusal->last_ns && now_ns - refusal->last_ns < lasts_ns;
}

static struct refusal *refusal_find(struct members *members, uint64_t who)
{
	for (unsigned i = 0; i < REFUSALS; i++)
		if (members->refusal[i].who == who)
			return &members->refusal[i];
	return NULL;
}

static const char *refused_from(const struct refused_engine *who)
{
	return who->link ? who->link->from : who->member->address;
}

/* Remembers the refusal. True if it was not logged yet. */
static bool refusal_note(
	struct control *control, const struct refused_engine *who, bool theirs, const char *text)
{
	struct members *members = control->members;
	const Pc__Member *m = who->member;
	uint64_t own = m ? m->incarnation : placement_hash(refused_from(who));
	uint64_t id = who->shared ? who->shared : own ? own : 1;
	uint64_t why = placement_hash(text), now_ns = net_now();
	struct refusal *at = refusal_find(members, id);
	bool fresh = !at || at->why != why;

	if (!at) {
		at = &members->refusal[members->refusals++ % REFUSALS];
		*at = (struct refusal){.who = id};
	}
	if (!refusal_lasts(at, now_ns)) {
		at->since_ns = now_ns;
		at->gap_ns = 0;
	} else {
		at->gap_ns = now_ns - at->last_ns;
	}
	if (at->gap_ns > REFUSAL_GAP_NS)
		at->gap_ns = REFUSAL_GAP_NS;
	at->last_ns = now_ns;
	at->why = why;
	at->theirs = theirs;
	at->name_taken = who->name_taken;
	snprintf(at->from, sizeof(at->from), "%s", refused_from(who));
	text_fit(at->text, sizeof(at->text), "%s", text);
	at->name[0] = at->address[0] = '\0';
	if (m && member_fits(m)) {
		snprintf(at->name, sizeof(at->name), "%s", m->name);
		address_text(m->address, m->port, at->address);
	}
	return fresh;
}

/* The engine fits now: it is no longer counted as refused. */
static void refusal_end(struct control *control, const Pc__Member *member)
{
	struct members *members = control->members;
	char address[ADDRESS_TEXT_BYTES];

	if (!members->refusals)
		return;
	address_text(member->address, member->port, address);
	for (unsigned i = 0; i < REFUSALS; i++) {
		struct refusal *at = &members->refusal[i];

		if (!at->last_ns)
			continue;
		if (at->who == member->incarnation || strcmp(at->address, address) == 0 ||
			(!at->name_taken && strcmp(at->name, member->name) == 0))
			at->last_ns = at->why = 0;
	}
}

void refusals_report(const struct control *control, uint64_t now_ns, struct refusals_report *ret)
{
	ret->engines = ret->named = 0;
	for (unsigned i = 0; i < REFUSALS; i++) {
		const struct refusal *at = &control->members->refusal[i];
		struct refusal_report *report = &ret->engine[ret->named];

		if (!refusal_lasts(at, now_ns))
			continue;
		if (ret->engines++ >= REFUSALS_NAMED)
			continue;
		ret->named++;
		snprintf(report->from, sizeof(report->from), "%s", at->from);
		text_fit(report->text, sizeof(report->text), "%s", at->text);
		report->theirs = at->theirs;
		report->ms = (now_ns - at->since_ns) / 1000000;
	}
}

static void seed_refused(const struct rpc_link *link)
{
	struct member_seed *seed = link->dial && link->dial->seed ? link->dial->owner : NULL;

	if (seed)
		seed->refused = true;
}

/*
 * Sends the reason, if the other engine has dialled or cannot know it, closes the link, logs the
 * reason once for each engine, and remembers the refusal for health. One that was dialled and is
 * sent the reason had accepted this engine: it is not dialled again until it is named again.
 */
__attribute__((format(printf, 3, 4))) static void hello_refuse(
	struct control *control, const struct refused_engine *who, const char *format, ...)
{
	char text[LOG_LINE_BYTES - NAME_BYTES_MAX];
	struct rpc_link *link = who->link;
	struct member *dialled = link->dial && !link->dial->seed ? link->dial->owner : NULL;
	va_list args;

	va_start(args, format);
	text_vfit(text, sizeof(text), format, args);
	va_end(args);
	control->counter[COUNTER_members_refused]++;
	if (refusal_note(control, who, false, text) && !who->logged &&
		member_source_logs(control, link))
		log_error("the engine at %s is refused: %s", link->from, text);
	seed_refused(link);
	/* an engine that was dialled has our Hello already, and refuses it for the same reason */
	if (link->dial && !who->tell)
		rpc_link_close(link);
	else
		hello_last(control, link, text);
	if (dialled && who->tell)
		member_dial_stop(dialled);
}

/* Copies a text that people read; what is no printable character becomes a question mark. */
static void refusal_text_clean(const char *text, char ret[REFUSAL_BYTES])
{
	size_t i = 0;

	for (; text[i] && i < REFUSAL_BYTES - 1; i++)
		ret[i] = text[i];
	ret[i] = '\0';
	for (i = 0; ret[i]; i++)
		if (ret[i] < ' ' || ret[i] > '~')
			ret[i] = '?';
}

/* The other engine's Hello is a refusal of this engine, with this text. Closes the link. */
static void hello_refused_by(
	struct control *control, const struct refused_engine *who, const char *text)
{
	struct rpc_link *link = who->link;
	char clean[REFUSAL_BYTES];

	refusal_text_clean(text, clean);
	control->counter[COUNTER_members_refused]++;
	if (refusal_note(control, who, true, clean) && member_source_logs(control, link))
		log_error("the engine at %s refuses this engine: \"%s\"", link->from, clean);
	seed_refused(link);
	rpc_link_close(link);
}

/* Refuses a sender whose certificate is of another engine. */
static bool hello_check_certificate(
	struct control *control, struct rpc_link *link, const Pc__Member *m)
{
	if (secure_names(net_session(link->net), control->settings->cluster_id, m->name))
		return true;
	hello_refuse(control,
		&(struct refused_engine){
			.link = link, .member = m, .name_taken = true, .tell = true},
		"it says that it is %s, and its certificate has no URI peercache:%s/%s among its alternative names",
		m->name, control->settings->cluster_id, m->name);
	return false;
}

bool member_refused(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct refused_engine who = {.link = link, .member = hello->self, .name_taken = true};
	struct member *member = link->member;

	if (!hello->refusal || !hello->refusal[0] || hello->version != WIRE_VERSION ||
		!member_fits(hello->self))
		return false;
	hello_refused_by(control, &who, hello->refusal);
	if (member && member->state == MEMBER_ALIVE)
		member_lost(control, member, "it refuses this engine");
	return true;
}

/* ---- whether the version fits ---------------------------------------------------------------- */

/*
 * True if the sender has the wire version of this engine. Otherwise it is refused and the link is
 * closed. Reads only the fields whose meaning is the same in every wire version.
 */
static bool hello_check_version(
	struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	if (hello->version == WIRE_VERSION)
		return true;
	hello_refuse(control, &(struct refused_engine){.link = link, .member = hello->self},
		"its wire version is %u, the wire version of this engine is %u. Upgrade the older engine",
		hello->version, WIRE_VERSION);
	return false;
}

/* ---- whether values fit ---------------------------------------------------------------------- */

/*
 * Returns the length of "name = " in "name = value", or of the whole text if it contains no " = ".
 */
static size_t agreed_name_bytes(const char *text)
{
	const char *value = strstr(text, " = ");

	return value ? (size_t)(value - text) + 3 : strlen(text);
}

static const char *agreed_value(const char *text)
{
	return text + agreed_name_bytes(text);
}

/*
 * Returns the value in `hello` that has the same name as `ours`; NULL: the Hello has no value of
 * that name.
 */
static const char *agreed_their_value(const Pc__Hello *hello, const char *ours)
{
	size_t name = agreed_name_bytes(ours);

	for (size_t i = 0; i < hello->n_agreed && i < AGREED_ENTRIES_MAX; i++)
		if (member_text_prints(hello->agreed[i], AGREED_BYTES_MAX) &&
			strncmp(hello->agreed[i], ours, name) == 0)
			return hello->agreed[i] + name;
	return NULL;
}

/*
 * True if pages cannot go from one engine to the other: their rails have other links. An engine
 * without rails has no say until it has met one with rails.
 */
static bool links_differ(const struct control *control, const Pc__Hello *hello)
{
	const struct members *members = control->members;

	if (!hello->self->rails || (!control->rails && !members->serving))
		return false;
	return hello->links != members->agreed.links;
}

/* This engine has no rails: those of the next members must have the links of this one. */
static void links_take(struct control *control, const Pc__Hello *hello)
{
	struct members *members = control->members;
	const char *theirs;

	if (control->rails || members->serving || !hello->self->rails)
		return;
	theirs = agreed_their_value(hello, members->agreed.text[AGREED_LINKS]);
	agreed_links_set(&members->agreed, theirs ? theirs : "unknown");
	members->agreed.links = hello->links;
	members->serving = 1; /* until the map is made, which is soon */
}

/* Writes the list of the values that differ, as "cluster.replicas = 1 there, 2 here; ..." */
static void agreed_differences(
	const struct control *control, const Pc__Hello *hello, char *ret, size_t ret_bytes)
{
	const struct agreed *agreed = &control->members->agreed;
	bool links = links_differ(control, hello);
	size_t used = 0;

	*ret = '\0';
	for (unsigned i = 0; i < AGREED_TEXTS && used < ret_bytes; i++) {
		const char *ours = agreed->text[i], *theirs = agreed_their_value(hello, ours);
		int n;

		if ((theirs && strcmp(theirs, agreed_value(ours)) == 0) ||
			(i == AGREED_LINKS && !links))
			continue;
		n = snprintf(ret + used, ret_bytes - used, "%s%.*s%s there, %s here",
			used ? "; " : "", (int)agreed_name_bytes(ours), ours,
			theirs ? theirs : "unknown", agreed_value(ours));
		used += n > 0 ? (size_t)n : 0;
	}
	if (*ret == '\0')
		snprintf(ret, ret_bytes, "a value that only one of the two engines knows");
}

static bool hello_other_cluster(const struct control *control, const Pc__Hello *hello)
{
	const char *theirs = agreed_their_value(hello, "cluster.id = ");

	return !theirs || strcmp(theirs, control->settings->cluster_id) != 0;
}

/* ---- whether addresses fit ------------------------------------------------------------------- */

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
static bool hello_check_address(struct control *control, struct rpc_link *link, const Pc__Member *m)
{
	bool theirs = member_address_local(control, m->address), ours = control->rpc->loopback;

	if (theirs == ours && !(ours && link->far))
		return true;
	hello_refuse(control, &(struct refused_engine){.link = link, .member = m},
		"cluster.address is %s there and %s here, and a loopback address reaches no other host. Set cluster.address %s to an address that other hosts reach",
		m->address, control->settings->cluster_address,
		theirs && ours ? "on both"
		: theirs       ? "there"
			       : "here");
	return false;
}

/* Of the same kind: shared memory reaches engines of one host, and of those not all. */
static bool hello_check_links(
	struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const Pc__Member *m = hello->self;
	char address[ADDRESS_TEXT_BYTES];

	if (!links_differ(control, hello))
		return true;
	hello_refuse(control, &(struct refused_engine){.link = link, .member = m},
		"soft.link = shm there and here, and %s (%s) is on another host, in another network namespace or of another user: shared memory does not reach it. Set soft.link = tcp on every engine",
		m->name, address_text(m->address, m->port, address));
	return false;
}

/* ---- whether names fit ----------------------------------------------------------------------- */

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
		hello_refuse(control, &who,
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
		hello_refuse(control, &who,
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
		hello_refuse(control, &who,
			"its name, %s (%s), is that of a live engine at %s. Set another engine.name",
			m->name, theirs, ours);
		return true;
	}
	return false;
}

/*
 * True if the sender has the values that must be equal on every engine, an address that fits ours
 * and a name of its own. Otherwise the sender is refused and the link is closed.
 */
static bool hello_check_values(
	struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct agreed *agreed = &control->members->agreed;
	const Pc__Member *m = hello->self;
	const char *links = agreed_their_value(hello, agreed->text[AGREED_LINKS]);
	char text[512], address[ADDRESS_TEXT_BYTES];
	bool kind = links && strcmp(links, agreed_value(agreed->text[AGREED_LINKS])) == 0;

	if (hello->agreed_hash != agreed->hash || (links_differ(control, hello) && !kind)) {
		agreed_differences(control, hello, text, sizeof(text));
		address_text(m->address, m->port, address);
		if (hello_other_cluster(control, hello))
			remembered_drop(link->dial);
		hello_refuse(control, &(struct refused_engine){.link = link, .member = m},
			"%s (%s) has %s. Make it equal on every engine of the cluster, or take the engine of another cluster out of cluster.seeds",
			m->name, address, text);
		return false;
	}
	return hello_check_links(control, link, hello) && hello_check_address(control, link, m) &&
	       !hello_collides(control, link, m);
}

/* ---- whether the map has room ---------------------------------------------------------------- */

/* Names can be invented: engines that find no room share one refusal. */
#define NO_ROOM "the cluster has %d engines already, which is the limit"
#define NO_ROOM_SHARED placement_hash("no room")

static bool map_has_room(const struct control *control, const Pc__Member *m)
{
	const struct member *member = member_find(control->members, m->name);

	return (member && member->state == MEMBER_ALIVE) || control->members->alive < NODES_MAX;
}

bool member_has_room(struct control *control, const Pc__Member *m)
{
	const struct refused_engine who = {.member = m, .shared = NO_ROOM_SHARED};
	char text[REFUSAL_BYTES], address[ADDRESS_TEXT_BYTES];

	if (map_has_room(control, m))
		return true;
	snprintf(text, sizeof(text), NO_ROOM, NODES_MAX);
	if (refusal_note(control, &who, false, text))
		log_error("engine %s (%s), which another one names, is refused: %s", m->name,
			address_text(m->address, m->port, address), text);
	return false;
}

/* Refuses a sender for which the map has no room. */
static bool hello_finds_room(struct control *control, struct rpc_link *link, const Pc__Member *m)
{
	const struct refused_engine who = {
		.link = link, .member = m, .tell = true, .shared = NO_ROOM_SHARED};

	if (map_has_room(control, m))
		return true;
	hello_refuse(control, &who, NO_ROOM, NODES_MAX);
	return false;
}

/* ---- Hellos of the engine itself, of seeds and of visitors ----------------------------------- */

/* True, as member_hello(). */
static bool hello_from_self(struct control *control, struct rpc_link *link)
{
	struct rpc_dial *dial = link->dial;
	struct member_texts texts;

	/* this engine dialled itself; the end of the link that dialled learns it from this Hello */
	if (!dial) {
		hello_last(control, link, NULL);
	} else if (dial->seed && dial->tried < dial->addresses) {
		/* a name with further addresses: the dial goes on with the next one */
	} else if (dial->seed) {
		struct member_seed *seed = dial->owner;

		seed->dial = NULL;
		seed->refused = false;
		seed->retry_ns = net_now() + MEMBER_SELF_RETRY_NS;
		remembered_drop(dial);
		rpc_dial_stop(dial);
	} else {
		member_texts(&((struct member *)dial->owner)->record, &texts);
		log_warn(
			"%s, the address of member %s, leads to this engine: set cluster.address there to an address that others can reach",
			link->from, texts.name);
	}
	rpc_link_close(link);
	return true;
}

/*
 * A seed's engine has sent its name. The seed's own dial ends here; the member's entry is dialled
 * instead.
 */
static void hello_from_seed(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct rpc_dial *dial = link->dial;
	struct member_seed *seed = dial->owner;

	if (!hello_finds_room(control, link, hello->self))
		return;
	snprintf(seed->name, sizeof(seed->name), "%s", hello->self->name);
	seed->refused = false;
	seed->retry_ns = 0;
	seed->dial = NULL;
	rpc_dial_stop(dial); /* this also closes the dial's link */
	member_learn(control, NULL, hello->self);
	(void)member_learn_all(control, NULL, hello->n_members, hello->members);
}

/*
 * The receiving end of hello_from_seed(): answers a Hello whose sender only wants to know our name.
 * The sender is alive, so it becomes a candidate and is dialled, if the map has room.
 */
static void hello_from_visitor(
	struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct member *member;

	hello_last(control, link, NULL);
	member_learn(control, link, hello->self);
	member = member_find(control->members, hello->self->name);
	if (member && member->state == MEMBER_DEAD && control->members->alive < NODES_MAX)
		member_dial(control, member, false);
	(void)member_learn_all(control, link, hello->n_members, hello->members);
}

/* ---- Hellos that make members ---------------------------------------------------------------- */

/* Copies Hello.software, which only people read. A text that does not fit is ignored. */
static void contact_software_set(struct member_contact *contact, const char *text)
{
	bool prints = member_text_prints(text, sizeof(contact->software));

	snprintf(contact->software, sizeof(contact->software), "%s", prints ? text : "");
}

/* True if the Hello adds a member to the map, or replaces one. */
static bool hello_joins(const struct control *control, const Pc__Member *m)
{
	const struct member *member = member_find(control->members, m->name);

	if (!member)
		return true;
	if (member->state == MEMBER_ALIVE)
		return member->record.incarnation != m->incarnation;
	return member->contact->trial.incarnation != m->incarnation;
}

/* Refuses a sender for which the map has no room, or of whose address too many join at once. */
static bool hello_may_join(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct refused_engine who = {.link = link, .member = hello->self, .logged = true};

	if (!hello_finds_room(control, link, hello->self))
		return false;
	if (!hello_joins(control, hello->self) ||
		member_source_joins(control, link, hello->self->name))
		return true;
	/* Those of one address share one, too. member_source_joins() has logged it. */
	who.shared = map_mix(placement_hash(link->from) + 1) | 1;
	hello_refuse(control, &who,
		"more than %u engines of its address have joined at once: %u more may in each second",
		SOURCE_JOINS, SOURCE_JOINS_PER_S);
	return false;
}

/*
 * Finds or takes the entry for a Hello's sender and makes it alive, unless it is on trial. NULL: no
 * memory.
 */
static struct member *hello_entry(
	struct control *control, const struct rpc_link *link, const Pc__Hello *hello)
{
	const Pc__Member *m = hello->self;
	struct member *member = member_find(control->members, m->name);
	bool trial;

	if (member && member->state == MEMBER_ALIVE) {
		if (member->record.incarnation == m->incarnation)
			return member;
		member_take_off_map(control, member, "it was started again");
	}
	if (!member)
		member = member_take(control);
	if (!member)
		return NULL;
	trial = member_trial_hello(control, member, m->incarnation);
	if (!member_fill(control, member, m)) {
		member_put_back(control, member);
		return NULL;
	}
	if (trial)
		return member;
	if (member->state == MEMBER_FREE)
		member_state_set(control->members, member, MEMBER_CANDIDATE);
	member->flood = member_source_flooded(control, link);
	if (member_put_on_map(control, member) < 0) {
		member->since_ns = net_now();
		return NULL;
	}
	return member;
}

static void member_link_attach(
	struct control *control, struct rpc_link *link, struct member *member)
{
	struct member_contact *contact = member->contact;
	struct rpc_link **at = link->dial ? &contact->out : &contact->in;
	struct rpc_link *old = *at;

	*at = link;
	link->member = member;
	member->proven |= link->dial != NULL;
	contact->heard_ns = net_now();
	member_link_unused(contact, contact->heard_ns);
	contact->prove_ns = 0;
	contact->barred = false;
	rpc_link_up(link);
	/* at once: one of both may end before the next heartbeat */
	remembered_note(control, member, contact->heard_ns);
	if (old && old != link) {
		if (!member_on_trial(member))
			control->member_events->link_down(control, member->record.peer, old);
		old->member = NULL;
		rpc_link_close(old);
	}
}

/*
 * The term changes when the other engine has removed us from its map, and with that our entries
 * from its shard. If the term differs from the last one received, directory_forgotten() publishes
 * our entries again.
 */
static void hello_term(struct control *control, struct member *member, uint64_t term)
{
	if (term == 0)
		return;
	if (member->term_theirs && member->term_theirs != term)
		control->member_events->forgotten(control, member->record.ref);
	member->term_theirs = term;
}

static bool hello_well_formed(const Pc__Hello *hello)
{
	if (!member_fits(hello->self) || hello->n_members > MEMBERS_MAX)
		return false;
	for (size_t i = 0; i < hello->n_members; i++)
		if (!member_fits(hello->members[i]))
			return false;
	return true;
}

/* Refuses engines that do not fit, and notes whether this one is refused. True: neither. */
static bool hello_accepted(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct refused_engine who = {.link = link, .member = hello->self, .name_taken = true};

	if (!hello_check_values(control, link, hello))
		return false;
	if (hello->refusal && hello->refusal[0]) {
		hello_refused_by(control, &who, hello->refusal);
		return false;
	}
	return true;
}

bool member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct member *member;
	struct rpc_dial *dial = link->dial;

	if (!hello_check_version(control, link, hello))
		return true;
	if (!hello_well_formed(hello))
		return false;
	if (!hello_check_certificate(control, link, hello->self))
		return true;
	if (hello->self->incarnation == control->incarnation)
		return hello_from_self(control, link);
	if (control->members->leaving) {
		rpc_link_close(link);
		return true;
	}
	if (!hello_accepted(control, link, hello))
		return true;
	if (dial && dial->seed) {
		hello_from_seed(control, link, hello);
		return true;
	}
	if (!dial && hello->visit) {
		hello_from_visitor(control, link, hello);
		return true;
	}
	/*
	 * A different engine has taken over the address of this dial's member: that engine gets its
	 * own entry and is dialled separately.
	 */
	if (dial && !member_is_named(&((struct member *)dial->owner)->record, hello->self->name)) {
		member = dial->owner;
		rpc_link_close(link);
		member_learn(control, link, hello->self); /* before the dial may be freed */
		if (member->state == MEMBER_ALIVE && !member->contact->in)
			member_lost(control, member, "another engine listens at its address");
		return true;
	}
	if (!hello_may_join(control, link, hello))
		return true;
	refusal_end(control, hello->self);
	member = hello_entry(control, link, hello);
	if (!member || !member_contact(&control->members->table, member)) {
		hello_refuse(control,
			&(struct refused_engine){.link = link, .member = hello->self, .tell = true},
			"this engine has no memory for one more member");
		return true;
	}
	contact_software_set(member->contact, hello->software);
	if (!member_on_trial(member)) {
		links_take(control, hello);
		hello_term(control, member, hello->term);
	}
	member_link_attach(control, link, member);
	if (!dial)
		member_greet(control, link);
	if (!member->contact->out && member->neighbour)
		member_dial(control, member, false);
	/* With rings, the list has more. */
	if (!control->members->rings)
		(void)member_learn_all(control, link, hello->n_members, hello->members);
	/* With a full table, what was learned may have taken the place of an entry on trial. */
	if (link->member == member && !member_on_trial(member))
		control->member_events->link_up(control, link, hello);
	/* The first member that is reached sends the list. */
	if (link->member == member && !control->members->list_ns)
		member_list_compare(control, link, net_now());
	return true;
}
