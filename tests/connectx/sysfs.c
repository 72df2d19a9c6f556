/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sysfs tree in which libibverbs finds devices: one per process, in a directory of its own to
 * which SYSFS_PATH points. Created when the program first looks for devices, removed when it ends;
 * the tree of a killed process is removed by the next process. Run by program threads.
 *
 * As in sysfs, class/infiniband/mlx5_N is a link to the directory of a PCI device: programs find
 * its address and NUMA node by realpath().
 *
 *   class/infiniband_verbs/uverbsN          ibdev, dev, abi_version
 *   class/infiniband/mlx5_N                 -> ../../devices/0000:c1:00.N/infiniband/mlx5_N
 *   devices/0000:c1:00.N                    modalias, numa_node, vendor, device
 *   devices/0000:c1:00.N/infiniband/mlx5_N  node_type, ports/1 ...; device -> ../..
 */
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

#define PREFIX "soft-connectx."
#define PATH_BYTES 256

static char root[PATH_BYTES]; /* path of the device tree; the value of the variable SYSFS_PATH */
/* pid of the process that created the device tree; 0: it is not created yet */
static int owner;

static const char *temporary(void)
{
	const char *at = getenv("TMPDIR");

	return at && at[0] == '/' && strlen(at) < 128 ? at : "/tmp";
}

/* ---- GIDs: each ends with the NIC's number --------------------------------------------------- */

/*
 * Returns a GID of the device. 0 and 1: fe80::<number>, as RoCE v1 and v2. 2 and 3:
 * ::ffff:10.77.<number>, likewise. When the GIDs have moved, 0 and 1 change places with 2 and 3. 4
 * to 7: those of a VLAN.
 */
void uv_gid(const struct uv_device *device, unsigned index, uint8_t ret_gid[16])
{
	static const uint8_t local[16] = {0xfe, 0x80, [8] = 0x5c, 0x0f, 0x7c};
	static const uint8_t mapped[16] = {[10] = 0xff, 0xff, 10, 77};

	bool vlan = index >= UV_GIDS;

	index %= UV_GIDS;
	if (device->gids_moved)
		index = (index + 2) % UV_GIDS;
	memcpy(ret_gid, index < 2 ? local : mapped, 16);
	ret_gid[13] += vlan;
	ret_gid[14] = (uint8_t)(device->number >> 8);
	ret_gid[15] = (uint8_t)device->number;
}

unsigned uv_gids(const struct uv_device *device)
{
	return device->odd & UV_ODD_VLAN ? UV_GIDS_MAX : UV_GIDS;
}

void uv_device_name(const struct uv_device *device, char ret_name[UV_NAME_BYTES])
{
	snprintf(ret_name, UV_NAME_BYTES, "mlx5_%s%u", device->odd & UV_ODD_BOND ? "bond_" : "",
		device->index);
}

void uv_name(uint16_t number, uint8_t ret_name[16])
{
	static const uint8_t name[16] = {0xfe, 0x80, [8] = 0x5c, 0x0f, 0x7c};

	memcpy(ret_name, name, 16);
	ret_name[14] = (uint8_t)(number >> 8);
	ret_name[15] = (uint8_t)number;
}

uint16_t uv_gid_number(const uint8_t gid[16])
{
	return (uint16_t)(gid[14] << 8 | gid[15]);
}

/* ---- writing --------------------------------------------------------------------------------- */

/*
 * Writes one file of the device tree and creates its directories. On error libibverbs does not find
 * the device.
 */
__attribute__((format(printf, 3, 4))) static void put(
	const char *base, const char *file, const char *format, ...)
{
	char path[2 * PATH_BYTES], text[128];
	va_list arguments;
	int fd, n;

	snprintf(path, sizeof(path), "%s/%s", base, file);
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		mkdir(path, 0755);
		*slash = '/';
	}
	va_start(arguments, format);
	n = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (write(fd, text, (size_t)n) != n)
		unlink(path);
	close(fd);
}

static void put_gids(const char *port, const struct uv_device *device)
{
	char file[64];

	for (unsigned i = 0; i < uv_gids(device); i++) {
		uint8_t gid[16];

		uv_gid(device, i, gid);
		snprintf(file, sizeof(file), "gids/%u", i);
		put(port, file,
			"%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x:%02x%02x\n",
			gid[0], gid[1], gid[2], gid[3], gid[4], gid[5], gid[6], gid[7], gid[8],
			gid[9], gid[10], gid[11], gid[12], gid[13], gid[14], gid[15]);
		/* also on InfiniBand: there the kernel knows only the type "IB/RoCE v1" */
		snprintf(file, sizeof(file), "gid_attrs/types/%u", i);
		put(port, file, "%s\n", i % 2 && !device->infiniband ? "RoCE v2" : "IB/RoCE v1");
		snprintf(file, sizeof(file), "gid_attrs/ndevs/%u", i);
		if (!device->infiniband)
			put(port, file, "eth_%u\n", device->index);
	}
	put(port, "pkeys/0", "0xffff\n");
}

static void put_link(const char *base, const char *file, const char *target)
{
	char path[2 * PATH_BYTES];

	snprintf(path, sizeof(path), "%s/%s", base, file);
	if (symlink(target, path))
		fprintf(stderr, "soft-connectx: creating the link %s: %s\n", path, strerror(errno));
}

/* Writes the device's directory and the link to it in class/infiniband. */
static void put_pci(const char *base, const struct uv_device *device)
{
	char at[PATH_BYTES + 64], link[16 + UV_NAME_BYTES], target[96], name[UV_NAME_BYTES];

	/* a bus has functions 0 to 7 only; a PCI address has the form of this one */
	snprintf(at, sizeof(at), "%s/devices/0000:c1:%02x.%u", base, device->index / 8,
		device->index % 8);
	/* a ConnectX-7, which is in libmlx5's table of PCI ids */
	put(at, "modalias", "pci:v000015B3d00001021sv000015B3sd00000001bc02sc07i00\n");
	put(at, "numa_node", "%d\n", device->numa_node);
	put(at, "vendor", "0x15b3\n");
	put(at, "device", "0x1021\n");
	uv_device_name(device, name);
	snprintf(link, sizeof(link), "infiniband/%s", name);
	snprintf(target, sizeof(target), "%s/node_type", link);
	put(at, target, "1: CA\n");
	snprintf(target, sizeof(target), "%s/device", link);
	put_link(at, target, "../..");
	snprintf(at, sizeof(at), "%s/class", base);
	snprintf(target, sizeof(target), "../../devices/0000:c1:%02x.%u/%s", device->index / 8,
		device->index % 8, link);
	put_link(at, link, target);
}

static void put_device(const char *base, const struct uv_device *device)
{
	char at[PATH_BYTES + 64], name[UV_NAME_BYTES];
	uint16_t n = device->number;

	snprintf(at, sizeof(at), "%s/class/infiniband_verbs/uverbs%u", base, device->index);
	uv_device_name(device, name);
	put(at, "ibdev", "%s\n", name);
	/* the number of /dev/null as that of the device node, see interpose.c */
	put(at, "dev", "%u:%u\n", major(UV_RDEV(device->index)), minor(UV_RDEV(device->index)));
	put(at, "abi_version", "1\n");
	put_pci(base, device);
	snprintf(at, sizeof(at), "%s/class/infiniband/%s", base, name);
	put(at, "node_guid", "5c0f:7c00:0000:%04x\n", n);
	put(at, "sys_image_guid", "5c0f:7c00:0000:%04x\n", n);
	put(at, "fw_ver", "28.0.0\n");
	put(at, "hca_type", "MT4129\n");
	put(at, "board_id", "SOFT_CONNECTX\n");
	snprintf(at, sizeof(at), "%s/class/infiniband/%s/ports/1", base, name);
	put(at, "state", "%s\n", device->down ? "1: DOWN" : "4: ACTIVE");
	put(at, "lid", "0x%x\n", device->infiniband ? n : 0);
	put(at, "rate", "%u Gb/sec (4X)\n", device->gbits);
	put(at, "link_layer", "%s\n", device->infiniband ? "InfiniBand" : "Ethernet");
	put_gids(at, device);
}

/* ---- removing -------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *walk)
{
	(void)status;
	(void)type;
	(void)walk;
	remove(path);
	return 0;
}

static void remove_tree(const char *path)
{
	nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/*
 * Opens the tree and locks it: shared, as long as its process lives, or to remove it. -1: not now.
 * A process of another PID namespace sees the lock, but not the process.
 */
static int tree_lock(const char *path, int how)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || flock(fd, how | LOCK_NB) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Removes the device trees of processes that no longer exist. */
static void remove_dead(void)
{
	DIR *directory = opendir(temporary());
	struct dirent *entry;

	while (directory && (entry = readdir(directory))) {
		char path[2 * PATH_BYTES + 16];
		int pid = 0, fd;

		if (sscanf(entry->d_name, PREFIX "%d", &pid) != 1 || pid <= 0 ||
			kill(pid, 0) == 0 || errno != ESRCH)
			continue;
		snprintf(path, sizeof(path), "%s/%s", temporary(), entry->d_name);
		fd = tree_lock(path, LOCK_EX);
		if (fd < 0)
			continue;
		remove_tree(path);
		close(fd);
	}
	if (directory)
		closedir(directory);
}

/* ---- creating and removing the tree ---------------------------------------------------------- */

void uv_sysfs_prepare(void)
{
	snprintf(root, sizeof(root), "%s/" PREFIX "%d", temporary(), (int)getpid());
	setenv("SYSFS_PATH", root, 1);
}

bool uv_sysfs_has(const char *path)
{
	return !owner && root[0] && strncmp(path, root, strlen(root)) == 0;
}

/*
 * Returns the path in the device tree that stands for a path in /sys/class/infiniband or
 * /sys/class/infiniband_verbs, written to `to` (PATH_MAX bytes); any other path as it is. Without
 * devices, and before the tree exists, nothing is replaced.
 */
const char *uv_sysfs_path(const char *path, char *to)
{
	static const char from[] = "/sys/class/infiniband";
	const char *end = path + sizeof(from) - 1;

	if (strncmp(path, from, sizeof(from) - 1) != 0)
		return path;
	if (strncmp(end, "_verbs", 6) == 0)
		end += 6;
	if (*end && *end != '/')
		return path;
	uv_sysfs_write();
	if (!uv_devices() || strlen(root) + strlen(path) >= PATH_MAX)
		return path;
	snprintf(to, PATH_MAX, "%s%s", root, path + strlen("/sys"));
	return to;
}

/*
 * Builds the tree under another name first: libibverbs tells devices apart by the time at which
 * their directory was created.
 */
void uv_sysfs_write(void)
{
	char base[PATH_BYTES + 8], links[PATH_BYTES + 32];

	pthread_mutex_lock(&uv_lock);
	if (!owner && uv_devices_open() == 0) {
		owner = getpid();
		remove_dead();
		snprintf(base, sizeof(base), "%s.new", root);
		mkdir(base, 0755);
		(void)tree_lock(base, LOCK_SH); /* until the process ends */
		put(base, "class/infiniband_verbs/abi_version", "6\n");
		snprintf(links, sizeof(links), "%s/class/infiniband", base);
		mkdir(links, 0755);
		for (unsigned i = 0; i < uv_devices(); i++)
			if (!uv_device(i)->gone)
				put_device(base, uv_device(i));
		if (rename(base, root))
			fprintf(stderr, "soft-connectx: renaming the device tree to %s: %s\n", root,
				strerror(errno));
	}
	for (unsigned i = 0; i < uv_devices(); i++)
		uv_message_idle(uv_device(i));
	pthread_mutex_unlock(&uv_lock);
}

void uv_sysfs_show(const struct uv_device *device, bool shown)
{
	char at[PATH_BYTES + 64], name[UV_NAME_BYTES];

	if (!owner)
		return;
	if (shown) {
		put_device(root, device);
		return;
	}
	snprintf(at, sizeof(at), "%s/class/infiniband_verbs/uverbs%u", root, device->index);
	remove_tree(at);
	uv_device_name(device, name);
	snprintf(at, sizeof(at), "%s/class/infiniband/%s", root, name);
	unlink(at);
	snprintf(at, sizeof(at), "%s/devices/0000:c1:%02x.%u", root, device->index / 8,
		device->index % 8);
	remove_tree(at);
}

/* Removes the device tree; not in a child of fork(), because it belongs to the parent. */
void uv_sysfs_remove(void)
{
	if (owner && owner == getpid())
		remove_tree(root);
}
