/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl explain: why one key is found or not. pc_explain() asks the owners of the key, the
 * holders and the engine of this host, and tells what a get returns; this file adds what the
 * engine's report tells about the members, and says it in words. One thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/common.h"
#include "tools/ctl.h"

#define KEY_BYTES_MAX 1024u
#define NOT_KNOWN 4 /* exit status: a get says unreachable, and the key may be stored */

enum verdict {
	PRESENT,
	ON_DISK,
	ABSENT,
	EVICTED,
	HOLDER_DEAD,
	HOLDER_OUT,
	OWNER_OUT,
	OWNER_SUSPECT,
	ENGINE_OUT,
	NO_MAP
};
static const struct {
	const char *name;
	int status;
	const char *cause; /* as in pc_explain(); NULL: a get does not say unreachable */
} verdict_about[] = {
	[PRESENT] = {"present", 0, NULL},
	[ON_DISK] = {"on disk", 0, NULL},
	[ABSENT] = {"absent", 1, NULL},
	[EVICTED] = {"evicted", 1, NULL},
	[HOLDER_DEAD] = {"holder dead", 1, NULL},
	[HOLDER_OUT] = {"holder unreachable", NOT_KNOWN, "holder"},
	[OWNER_OUT] = {"owner unreachable", NOT_KNOWN, "owner"},
	[OWNER_SUSPECT] = {"owner suspect", NOT_KNOWN, "suspect owner"},
	[ENGINE_OUT] = {"engine silent", NOT_KNOWN, "this engine"},
	[NO_MAP] = {"no owner", NOT_KNOWN, "no map"},
};
#define VERDICTS (sizeof(verdict_about) / sizeof(verdict_about[0]))

/* The first object of the array whose member `name` is `text`; NULL: none. */
static json_object *first_with(json_object *array, const char *name, const char *text)
{
	for (size_t i = 0; i < json_length(array); i++)
		if (!strcmp(json_text(json_at(array, i), name), text))
			return json_at(array, i);
	return NULL;
}

/* ---- what is known --------------------------------------------------------------------------- */

/*
 * Adds to each owner and holder its name, "" if it is no member now, and why this host suspects it;
 * "": it does not.
 */
static void add_member(json_object *array, json_object *members)
{
	for (size_t i = 0; i < json_length(array); i++) {
		json_object *o = json_at(array, i);
		json_object *member = json_member_with(members, json_text(o, "ref"));

		add_text(o, "name", json_text(member, "name"));
		add_text(o, "suspect", json_text(member, "suspect"));
	}
}

/* Asks pc_explain(). NULL: no engine, or it ended. */
static json_object *explain(struct ctl_run *ctl, const char *key)
{
	json_object *found = NULL;
	char *text;

	if (pc_explain(ctl->channel, key, strlen(key), ctl->timeout_ms * 3 / 4, &text))
		return NULL;
	found = json_tokener_parse(text);
	free(text);
	return found;
}

/* The first owner that a get does not ask; NULL: it asks all. */
static json_object *owner_not_asked(json_object *owners)
{
	for (size_t i = 0; i < json_length(owners); i++)
		if (!json_flag(json_at(owners, i), "asked"))
			return json_at(owners, i);
	return NULL;
}

/* What a get of this host returns, in one word. */
static enum verdict conclude(json_object *found)
{
	json_object *holders = json_get(found, "holders");
	const char *result = json_text(found, "result"), *cause = json_text(found, "cause");

	if (!strcmp(result, "hit")) {
		if (first_with(holders, "state", "page"))
			return PRESENT;
		return first_with(holders, "state", "on disk") ||
				       !strcmp(json_text(found, "here"), "disk")
			       ? ON_DISK
			       : PRESENT;
	}
	for (enum verdict v = 0; v < VERDICTS; v++)
		if (verdict_about[v].cause && !strcmp(verdict_about[v].cause, cause))
			return v;
	if (!strcmp(result, "stale"))
		return EVICTED;
	return json_length(holders) ? HOLDER_DEAD : ABSENT;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* True if an owner does not name the page's holder. */
static bool owner_lacks(json_object *owners)
{
	for (size_t i = 0; i < json_length(owners); i++)
		if (strcmp(json_text(json_at(owners, i), "answer"), "present") != 0)
			return true;
	return false;
}

/* A get finds the page. Its host is the holder that an entry names, or this host by its engine. */
static void sentence_found(json_object *found, enum verdict verdict, char *ret, size_t bytes)
{
	json_object *owners = json_get(found, "owners");
	json_object *o = first_with(
		json_get(found, "holders"), "state", verdict == PRESENT ? "page" : "on disk");
	const char *rest = owner_lacks(owners) ? "; not every owner has the entry" : "";
	char name[PLAIN_BYTES];

	if (!o)
		snprintf(ret, bytes, "found: %s this host; no owner has the entry",
			verdict == PRESENT ? "in the memory of" : "on the disk of");
	else if (verdict == PRESENT)
		snprintf(ret, bytes, "found: %s holds the page, %lld bytes%s",
			json_plain(o, "name", name), (long long)json_number(o, "bytes"), rest);
	else
		snprintf(ret, bytes, "found: on the disk of %s%s",
			json_flag(o, "here") ? "this host" : json_plain(o, "name", name), rest);
}

/* Every owner has answered, and a get is a miss. */
static void sentence_missing(json_object *found, enum verdict verdict, char *ret, size_t bytes)
{
	json_object *holders = json_get(found, "holders");
	json_object *o = first_with(holders, "state", "evicted");
	char name[PLAIN_BYTES];

	if (!o)
		o = first_with(holders, "state", "other key");
	if (verdict == EVICTED)
		snprintf(ret, bytes,
			"not found: the directory names %s, which does not have the page any more; "
			"a read removes the entry",
			json_plain(o, "name", name));
	else if (verdict == HOLDER_DEAD)
		snprintf(ret, bytes,
			"not found: the holder that the directory names is no longer a member, and "
			"its pages are gone");
	else if (!strcmp(json_text(found, "here"), "memory"))
		snprintf(ret, bytes,
			"not found: no owner has an entry, but this host has the page in memory: "
			"its entry is on the way, or is repaired within minutes");
	else
		snprintf(ret, bytes,
			"not found: no owner has an entry: the key was not stored in this "
			"namespace, or it was evicted or removed");
}

/* A get says unreachable. */
static void sentence_unknown(json_object *found, enum verdict verdict, char *ret, size_t bytes)
{
	json_object *owners = json_get(found, "owners"), *o;
	char name[PLAIN_BYTES], why[PLAIN_BYTES];

	switch (verdict) {
	case HOLDER_OUT:
		o = first_with(json_get(found, "holders"), "state", "unreachable");
		snprintf(ret, bytes,
			"not known: %s holds the page, says the directory, but cannot be read: %s",
			json_plain(o, "name", name), json_plain(o, "why", why));
		return;
	case OWNER_OUT:
		o = first_with(owners, "answer", "unreachable");
		snprintf(ret, bytes,
			"not known: the owner %s cannot be asked: %s; no other owner has the key",
			json_plain(o, "name", name), json_plain(o, "why", why));
		return;
	case OWNER_SUSPECT:
		o = owner_not_asked(owners);
		snprintf(ret, bytes,
			"not known: the owner %s is suspect (%s), so a get does not wait for it and "
			"says unreachable; no other owner has the key",
			json_plain(o, "name", name), json_plain(o, "suspect", why));
		return;
	case ENGINE_OUT:
		snprintf(ret, bytes,
			"not known: no owner has an entry, and the engine of this host does not "
			"tell whether its disk has the page");
		return;
	default:
		snprintf(ret, bytes,
			"not known: this engine has no map of the cluster that names all owners of "
			"the key; ask again");
		return;
	}
}

/* Writes the conclusion as one sentence. */
static void sentence(json_object *found, enum verdict verdict, char *ret, size_t bytes)
{
	if (verdict_about[verdict].status == 0)
		sentence_found(found, verdict, ret, bytes);
	else if (verdict_about[verdict].status == 1)
		sentence_missing(found, verdict, ret, bytes);
	else
		sentence_unknown(found, verdict, ret, bytes);
}

static void print_member(json_object *o)
{
	char name[PLAIN_BYTES];

	json_plain(o, "name", name);
	printf("  %s%s: ", *name ? name : "a former member",
		json_flag(o, "here") ? " (this host)" : "");
}

static void print_owner(json_object *o)
{
	json_object *buckets = json_get(o, "buckets");

	print_member(o);
	printf("%s", json_text(o, "answer"));
	if (*json_text(o, "why"))
		printf(": %s", json_text(o, "why"));
	printf("; bucket %lld", (long long)json_object_get_int64(json_at(buckets, 0)));
	if (json_number(o, "read") > 1)
		printf(", which is full, and %lld",
			(long long)json_object_get_int64(json_at(buckets, 1)));
	if (*json_text(o, "suspect"))
		printf("; suspect: %s", json_text(o, "suspect"));
	printf("\n");
}

static void print_holder(json_object *o)
{
	const char *state = json_text(o, "state");

	print_member(o);
	if (!strcmp(state, "page"))
		printf("has the page, %lld bytes, CRC %s %s", (long long)json_number(o, "bytes"),
			json_text(o, "crc"), json_flag(o, "proven") ? "proven" : "not proven");
	else if (*json_text(o, "why"))
		printf("%s: %s", state, json_text(o, "why"));
	else if (!strcmp(state, "on disk"))
		printf("has the page on disk; a get reads it into memory there");
	else
		printf("%s: the page head there has generation %lld", state,
			(long long)json_number(o, "head_generation"));
	if (!strcmp(state, "on disk"))
		printf("; entry: ref %s", json_text(o, "ref"));
	else
		printf("; entry: rail %lld, unit %lld, generation %lld, ref %s",
			(long long)json_number(o, "rail"), (long long)json_number(o, "unit"),
			(long long)json_number(o, "generation"), json_text(o, "ref"));
	if (*json_text(o, "suspect"))
		printf("; suspect: %s", json_text(o, "suspect"));
	printf("\n");
}

/* Where this host has the page. */
static void print_here(json_object *found)
{
	const char *here = json_text(found, "here");

	if (!strcmp(here, "not known"))
		printf("this host: its engine did not answer\n");
	else if (!strcmp(here, "nowhere"))
		printf("this host: does not have the page%s\n",
			json_flag(found, "disk") ? "" : "; it has no disk in service");
	else
		printf("this host: has the page %s%s%s\n",
			strcmp(here, "disk") ? "in memory" : "on disk",
			*json_text(found, "here_why") ? ", " : "", json_text(found, "here_why"));
}

static void print_found(const struct ctl_run *ctl, const char *key, json_object *found)
{
	json_object *owners = json_get(found, "owners"), *holders = json_get(found, "holders");

	printf("key: %s, namespace: %s\n", key, ctl->name_space);
	printf("hash: %s, slot %lld, %lld members, map epoch %lld\n", json_text(found, "hash"),
		(long long)json_number(found, "slot"), (long long)json_number(found, "members"),
		(long long)json_number(found, "epoch"));
	printf("owners:\n");
	for (size_t i = 0; i < json_length(owners); i++)
		print_owner(json_at(owners, i));
	printf("places that the owners name:%s\n", json_length(holders) ? "" : " none");
	for (size_t i = 0; i < json_length(holders); i++)
		print_holder(json_at(holders, i));
	print_here(found);
	printf("%s\n", json_text(found, "text"));
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Completes `found`, which pc_explain() has made. Returns the conclusion. */
static enum verdict complete(
	const struct ctl_run *ctl, const char *key, json_object *found, json_object *report)
{
	enum verdict verdict = conclude(found);
	char text[512];

	add_member(json_get(found, "owners"), json_get(report, "members"));
	add_member(json_get(found, "holders"), json_get(report, "members"));
	sentence(found, verdict, text, sizeof(text));
	add_text(found, "verdict", verdict_about[verdict].name);
	add_text(found, "text", text);
	add_text(found, "key", key);
	add_text(found, "name_space", ctl->name_space);
	return verdict;
}

int ctl_explain(struct ctl_run *ctl, const char *key)
{
	json_object *report, *found;
	enum verdict verdict;

	if (!*key || strlen(key) > KEY_BYTES_MAX)
		die("a key has 1 to %u characters", KEY_BYTES_MAX);
	ctl_deadline(ctl);
	if (ctl_open(ctl, &ctl->pc) || pc_channel_open(ctl->pc, &ctl->channel))
		return ctl_no_answer(ctl, pc_error());
	found = explain(ctl, key);
	report = found ? engine_report(ctl->pc) : NULL;
	if (!report)
		return ctl_no_answer(ctl, pc_error());
	verdict = complete(ctl, key, found, report);
	if (ctl->json)
		print_json(json_object_get(found), stdout);
	else
		print_found(ctl, key, found);
	fflush(stdout);
	json_object_put(found);
	json_object_put(report);
	pc_channel_close(ctl->channel);
	return verdict_about[verdict].status;
}
