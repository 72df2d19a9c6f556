/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of settings; finds a setting by name, parses its value and stores it. Start-up only,
 * one thread. settings_file.c reads a file; settings_print.c prints the settings.
 */
#include "config/group_limits.h"
#include "config/setting.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "config/hooks.h"
#include "config/port_model.h"
#include "config/ports.h"
#include "config/size_text.h"

#define ENTRY_TEXT(text, min, max) .type = SETTING_TEXT, .choices = "", ENTRY(text, min, max)
#define ENTRY_SIZE(text, min, max) .type = SETTING_SIZE, .choices = "", ENTRY(text, min, max)
#define ENTRY_NUMBER(text, min, max) .type = SETTING_NUMBER, .choices = "", ENTRY(text, min, max)
#define ENTRY_FLAG(text, min, max) .type = SETTING_FLAG, .choices = "", ENTRY(text, min, max)
#define ENTRY_CHOICE(text, words, max) .type = SETTING_CHOICE, .choices = words, ENTRY(text, 0, max)
#define ENTRY(text, low, high) .fallback = text, .min = (low), .max = (int64_t)(high)

const struct setting setting_table[] = {
#define SETTING(s, k, type, text, min, max, u, h)                                                  \
	{.section = #s,                                                                            \
		.key = #k,                                                                         \
		.unit = u,                                                                         \
		.help = h,                                                                         \
		.offset = offsetof(struct settings, s##_##k),                                      \
		ENTRY_##type(text, min, max)},
#include "config/settings.def"
#undef SETTING
};

const unsigned setting_count = sizeof(setting_table) / sizeof(setting_table[0]);

#define DISTANCE_BYTES 64 /* characters of a name that distance() compares; it ignores the rest */

/*
 * Edit distance (Levenshtein): how many single characters must be inserted, removed or changed to
 * turn `a` into `b`. Ignores the case of `a` and everything after DISTANCE_BYTES characters.
 */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[DISTANCE_BYTES + 1];
	size_t length = strnlen(b, DISTANCE_BYTES);

	for (unsigned j = 0; j <= length; j++)
		row[j] = j;
	for (unsigned i = 0; a[i] && i < DISTANCE_BYTES; i++) {
		unsigned diagonal = row[0];

		row[0] = i + 1;
		for (size_t j = 0; j < length; j++) {
			unsigned best = diagonal + (tolower((unsigned char)a[i]) != b[j]);

			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j + 1] + 1 < best)
				best = row[j + 1] + 1;
			diagonal = row[j + 1];
			row[j + 1] = best;
		}
	}
	return row[length];
}

/*
 * How much section.key differs from the name of a setting. The same key in another section has the
 * smallest difference, because a wrong section is the likeliest mistake.
 */
static unsigned setting_distance(const struct setting *one, const char *section, const char *key)
{
	if (strcmp(one->key, key) == 0)
		return distance(section, one->section) > 0;
	return 1 + distance(section, one->section) + distance(key, one->key);
}

int setting_find(const char *section, const char *key, char *hint, size_t hint_bytes)
{
	const struct setting *near = &setting_table[0];
	unsigned near_distance = UINT32_MAX;

	for (unsigned i = 0; i < setting_count; i++) {
		const struct setting *one = &setting_table[i];
		unsigned far = setting_distance(one, section, key);

		if (strcmp(one->section, section) == 0 && strcmp(one->key, key) == 0)
			return (int)i;
		if (far < near_distance) {
			near = one;
			near_distance = far;
		}
	}
	if (strcmp(section, "test") == 0 && !TEST_HOOK(true))
		snprintf(hint, hint_bytes, NO_TEST_HOOKS);
	else if (near_distance <= 2 + strlen(key) / 2)
		snprintf(hint, hint_bytes, "did you mean %s.%s?", near->section, near->key);
	else
		snprintf(hint, hint_bytes, "peercache-engine --help lists every setting");
	return -1;
}

bool setting_choice_copy(const char *choices, int index, char ret[SETTING_CHOICE_BYTES])
{
	size_t length = strcspn(choices, "|");

	for (; index > 0 && choices[length]; index--) {
		choices += length + 1;
		length = strcspn(choices, "|");
	}
	if (index != 0 || length == 0 || length >= SETTING_CHOICE_BYTES)
		return false;
	memcpy(ret, choices, length);
	ret[length] = '\0';
	return true;
}

/*
 * Parses decimal digits at *text and advances *text past them. Returns -EINVAL when there is no
 * digit and -ERANGE when the value exceeds 64 bits.
 */
static int parse_digits(const char **text, uint64_t *ret)
{
	const char *p = *text;
	uint64_t value = 0;

	if (*p < '0' || *p > '9')
		return -EINVAL;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(value, 10u, &value) ||
			__builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
			return -ERANGE;
	}
	*text = p;
	*ret = value;
	return 0;
}

static int parse_number(const char *text, int64_t *ret)
{
	bool negative = *text == '-';
	uint64_t digits;
	int err;

	text += negative;
	err = parse_digits(&text, &digits);
	if (err)
		return err;
	if (*text)
		return -EINVAL;
	if (digits > INT64_MAX)
		return -ERANGE;
	*ret = negative ? -(int64_t)digits : (int64_t)digits;
	return 0;
}

static int parse_flag(const char *text, bool *ret)
{
	static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcmp(text, words[i]) == 0) {
			*ret = i & 1;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_choice(const char *choices, const char *text, int *ret)
{
	char word[SETTING_CHOICE_BYTES];

	for (int i = 0; setting_choice_copy(choices, i, word); i++) {
		if (strcmp(text, word) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

/* Parses the value of a SIZE or a NUMBER setting; stores it in `field` only when it is in range. */
static int parse_bounded(const struct setting *one, const char *value, void *field)
{
	int64_t number = 0;
	uint64_t bytes = 0;
	int err = one->type == SETTING_SIZE ? size_parse(value, &bytes)
					    : parse_number(value, &number);

	if (err || bytes > INT64_MAX)
		return err ? err : -ERANGE;
	if (one->type == SETTING_SIZE)
		number = (int64_t)bytes;
	if (number < one->min || number > one->max)
		return -ERANGE;
	memcpy(field, &number, sizeof(number));
	return 0;
}

int setting_parse(const struct setting *one, const char *value, struct settings *s, char *why,
	size_t why_bytes)
{
	void *field = (char *)s + one->offset;
	const char *wrong = "not an accepted value";
	char range[128];
	int err = 0;

	switch (one->type) {
	case SETTING_TEXT: err = setting_text_parse(one, value, field, &wrong); break;
	case SETTING_SIZE:
	case SETTING_NUMBER:
		err = parse_bounded(one, value, field);
		wrong = err == -ERANGE              ? "out of range"
			: one->type == SETTING_SIZE ? "not a size"
						    : "not a whole number";
		break;
	case SETTING_FLAG: err = parse_flag(value, field); break;
	case SETTING_CHOICE: err = parse_choice(one->choices, value, field); break;
	}
	if (err == 0) {
		s->given[(one - setting_table) / 64] |= 1ull << (one - setting_table) % 64;
		return 0;
	}
	if (one->type != SETTING_TEXT)
		(void)setting_text_bare(value, &wrong);
	setting_range(one, range, sizeof(range));
	snprintf(why, why_bytes, strchr(wrong, ';') ? "%s" : "%s; give %s", wrong, range);
	return -EINVAL;
}

int settings_default(struct settings *ret)
{
	char why[256];

	memset(ret, 0, sizeof(*ret));
	for (unsigned i = 0; i < setting_count; i++) {
		if (setting_parse(
			    &setting_table[i], setting_table[i].fallback, ret, why, sizeof(why)))
			return -EINVAL;
	}
	memset(ret->given, 0, sizeof(ret->given));
	return 0;
}

bool settings_given(const struct settings *s, const char *section, const char *key)
{
	char hint[128];
	int i = setting_find(section, key, hint, sizeof(hint));

	return i >= 0 && s->given[i / 64] >> i % 64 & 1;
}

int settings_set(struct settings *s, const char *section, const char *key, const char *value,
	char *err, size_t err_bytes)
{
	char why[256];
	int i = setting_find(section, key, why, sizeof(why));

	if (i < 0) {
		snprintf(err, err_bytes, "%.64s.%.64s = %.80s: unknown setting; %s", section, key,
			value, why);
		return -ENOENT;
	}
	if (setting_parse(&setting_table[i], value, s, why, sizeof(why)) == 0)
		return 0;
	snprintf(err, err_bytes, "%s.%s = %.80s: %s", section, key, value, why);
	return -EINVAL;
}

int settings_override(struct settings *s, const char *text, char *err, size_t err_bytes)
{
	char section[64], key[64];
	size_t dot = strcspn(text, ".="), equals = strcspn(text, "=");

	if (text[dot] != '.' || text[equals] != '=' || dot >= sizeof(section) ||
		equals - dot - 1 >= sizeof(key)) {
		snprintf(err, err_bytes,
			"--set %.80s: not a setting; write section.key=value, for example --set rail.polling=busy",
			text);
		return -EINVAL;
	}
	memcpy(section, text, dot);
	section[dot] = '\0';
	memcpy(key, text + dot + 1, equals - dot - 1);
	key[equals - dot - 1] = '\0';
	return settings_set(s, section, key, text + equals + 1, err, err_bytes);
}

/* Does a name consist of printable ASCII without spaces? Other engines refuse any other name. */
static bool is_word(const char *text)
{
	for (; *text; text++)
		if (*text <= ' ' || *text > '~')
			return false;
	return true;
}

static bool is_address(const char *text)
{
	return inet_pton(AF_INET, text, &(struct in_addr){0}) == 1 ||
	       inet_pton(AF_INET6, text, &(struct in6_addr){0}) == 1;
}

/* soft.port is the first port of the software NICs over TCP, if any; the others follow it. */
static int ports_check(const struct settings *s, char *err, size_t err_bytes)
{
	unsigned soft;
	int64_t first = s->soft_port, last;

	(void)ports_rails(s, &soft);
	if (!first || s->soft_link != LINK_TCP)
		return 0;
	last = first + soft - 1;
	if (last > 65535) {
		snprintf(err, err_bytes,
			"soft.port = %lld: %u software NICs need the ports up to %lld; lower it",
			(long long)first, soft, (long long)last);
		return -EINVAL;
	}
	return 0;
}

static bool is_any_address(const char *text)
{
	return strcmp(text, "0.0.0.0") == 0 || strcmp(text, "::") == 0;
}

/* No two sockets of the engine listen on one port of one address. */
static int ports_differ(const struct settings *s, char *err, size_t err_bytes)
{
	struct port_use list[PORTS_MAX];
	unsigned count = ports_list(s, list);

	for (unsigned i = 0; i < count; i++) {
		for (unsigned j = i + 1; j < count; j++) {
			const struct port_use *a = &list[i], *b = &list[j];
			unsigned both = a->port > b->port ? a->port : b->port;

			if (!a->listens || !b->listens || !a->port || !b->port ||
				both >= a->port + a->ports || both >= b->port + b->ports)
				continue;
			if (strcmp(a->address, b->address) != 0 && !is_any_address(a->address) &&
				!is_any_address(b->address))
				continue;
			snprintf(err, err_bytes,
				"%s = %u: this and %s = %u would both listen on port %u of one address; change one of them",
				b->setting, b->port, a->setting, a->port, both);
			return -EINVAL;
		}
	}
	return 0;
}

/* Why `host` can be neither an address nor a name; NULL: it can. */
static const char *host_wrong(const char *host)
{
	if (strchr(host, '$'))
		return "variables are not expanded; write the address";
	if (*host && strspn(host, "0123456789.") == strlen(host) && !is_address(host))
		return "not an IPv4 address; give four numbers from 0 to 255, such as 10.0.0.1";
	return NULL;
}

static int hosts_check(const struct settings *s, char *err, size_t err_bytes)
{
	const struct {
		const char *setting, *value;
	} one[] = {{"cluster.address", s->cluster_address}, {"cluster.bind", s->cluster_bind},
		{"soft.address", s->soft_address}, {"metrics.address", s->metrics_address},
		{"cluster.etcd", s->cluster_etcd}, {"cluster.seeds", s->cluster_seeds}};

	for (unsigned i = 0; i < sizeof(one) / sizeof(one[0]); i++) {
		char text[SETTING_TEXT_BYTES], *rest = NULL;

		snprintf(text, sizeof(text), "%s", one[i].value);
		for (char *each = strtok_r(text, ", \t", &rest); each;
			each = strtok_r(NULL, ", \t", &rest)) {
			const char *wrong;

			each += strncmp(each, "http://", 7) == 0 ? 7 : 0;
			if (strchr(each, ':') == strrchr(each, ':'))
				each[strcspn(each, ":")] = '\0';
			wrong = host_wrong(each);
			if (wrong) {
				snprintf(err, err_bytes, "%s = %.80s: %s", one[i].setting, each,
					wrong);
				return -EINVAL;
			}
		}
	}
	return 0;
}

/* No directory of disk.paths is given twice, under whatever name. */
static int paths_check(const struct settings *s, char *err, size_t err_bytes)
{
	char text[sizeof(s->disk_paths)], *rest = NULL, *path[DISK_PATHS_MAX];
	struct stat about[DISK_PATHS_MAX];
	unsigned count = 0;

	memcpy(text, s->disk_paths, sizeof(text));
	for (char *each = strtok_r(text, ",", &rest); each && count < DISK_PATHS_MAX;
		each = strtok_r(NULL, ",", &rest)) {
		if (stat(each, &about[count]) < 0)
			memset(&about[count], 0, sizeof(about[count]));
		for (unsigned i = 0; i < count; i++) {
			bool one = about[i].st_ino && about[i].st_ino == about[count].st_ino &&
				   about[i].st_dev == about[count].st_dev;

			if (!one && strcmp(path[i], each) != 0)
				continue;
			snprintf(err, err_bytes,
				"disk.paths: %.200s and %.200s are one directory; give each disk once",
				path[i], each);
			return -EINVAL;
		}
		path[count++] = each;
	}
	return 0;
}

bool settings_seed_only(const struct settings *s)
{
	return strcmp(s->rail_devices, "none") == 0;
}

static int settings_check_etcd(const struct settings *s, char *err, size_t err_bytes)
{
	if (!s->cluster_etcd_cert[0] != !s->cluster_etcd_key[0]) {
		snprintf(err, err_bytes,
			"cluster.etcd_cert and cluster.etcd_key: give both, or none");
		return -EINVAL;
	}
	if ((s->cluster_etcd_cert[0] || s->cluster_etcd_ca[0]) &&
		!strstr(s->cluster_etcd, "https://")) {
		snprintf(err, err_bytes,
			"cluster.etcd_%s has no effect: no endpoint of cluster.etcd begins with https://",
			s->cluster_etcd_ca[0] ? "ca" : "cert");
		return -EINVAL;
	}
	return 0;
}

/* Whether a setting is a list of limits of groups. */
static int limits_check(
	const char *setting, const char *list, uint64_t max, char *err, size_t err_bytes)
{
	const char *at = list, *wrong;
	struct group_limit limit;
	int rc;

	while ((rc = group_limits_next(&at, &limit, &wrong)) > 0)
		if (limit.value > max) {
			wrong = "the limit is too large";
			rc = -EINVAL;
			break;
		}
	if (rc < 0)
		snprintf(err, err_bytes, "%s = %.200s: %s", setting, list, wrong);
	return rc;
}

int settings_check(const struct settings *s, char *err, size_t err_bytes)
{
	bool name_is_word = is_word(s->engine_name);
	unsigned paths = 1;
	uint64_t segments;
	struct port_model model;
	char why[256];

	if (!name_is_word || !is_word(s->cluster_id)) {
		snprintf(err, err_bytes,
			"%s = \"%s\": other engines refuse this name; use printable ASCII without spaces",
			name_is_word ? "cluster.id" : "engine.name",
			name_is_word ? s->cluster_id : s->engine_name);
		return -EINVAL;
	}
	if (settings_check_etcd(s, err, err_bytes) < 0 ||
		limits_check("engine.quotas", s->engine_quotas, GROUP_LIMIT_MAX, err, err_bytes) <
			0 ||
		limits_check("engine.ttls", s->engine_ttls, GROUP_TTL_MAX_S, err, err_bytes) < 0)
		return -EINVAL;
	if (s->soft_address[0] && !is_address(s->soft_address)) {
		snprintf(err, err_bytes,
			"soft.address = %s: not an IPv4 or IPv6 address; give one of this host, or leave it empty to use cluster.address",
			s->soft_address);
		return -EINVAL;
	}
	if (port_model_parse(s->soft_model, &model, why, sizeof(why)) < 0) {
		snprintf(err, err_bytes, "soft.model = %s: %s", s->soft_model, why);
		return -EINVAL;
	}
	if (s->disk_segment_bytes % 4096 ||
		s->disk_bytes / DISK_SEGMENTS_MIN < s->disk_segment_bytes) {
		snprintf(err, err_bytes,
			"disk.segment_bytes = %llu: not a multiple of 4096, or disk.bytes has not room for %u of them; lower it or raise disk.bytes",
			(unsigned long long)s->disk_segment_bytes, DISK_SEGMENTS_MIN);
		return -EINVAL;
	}
	for (const char *c = s->disk_paths; *c; c++)
		paths += *c == ',';
	segments = s->disk_paths[0] ? paths * (s->disk_bytes / s->disk_segment_bytes) : 0;
	if (segments > DISK_SEGMENTS_MAX) {
		snprintf(err, err_bytes,
			"disk.bytes and disk.segment_bytes make %llu segments in %u path(s), and an engine has at most %u; raise disk.segment_bytes or lower disk.bytes",
			(unsigned long long)segments, paths, DISK_SEGMENTS_MAX);
		return -EINVAL;
	}
	if (segments && settings_seed_only(s)) {
		snprintf(err, err_bytes,
			"disk.paths = %.200s: an engine with rail.devices = none keeps no pages; remove disk.paths, or name a NIC or soft in rail.devices",
			s->disk_paths);
		return -EINVAL;
	}
	if (s->cluster_dead_after_ms < 2 * s->cluster_heartbeat_ms) {
		snprintf(err, err_bytes,
			"cluster.dead_after_ms = %lld: less than two heartbeats, so one late heartbeat makes a member dead; raise it to %lld or lower cluster.heartbeat_ms",
			(long long)s->cluster_dead_after_ms,
			2 * (long long)s->cluster_heartbeat_ms);
		return -EINVAL;
	}
	if (hosts_check(s, err, err_bytes) < 0 || paths_check(s, err, err_bytes) < 0 ||
		ports_check(s, err, err_bytes) < 0)
		return -EINVAL;
	return ports_differ(s, err, err_bytes);
}
