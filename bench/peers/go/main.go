// The worker for the Mutex of etcd's Go client; src/worker.rs describes its protocol.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

var (
	width = math.Log(1.02)
	ctx   = context.Background()
	stdin = bufio.NewReader(os.Stdin)
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func cpu() int64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return (usage.Utime.Nano() + usage.Stime.Nano()) / 1000
}

func rss() string {
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, "VmRSS:") {
			return strings.Fields(line)[1]
		}
	}
	return "0"
}

// The clock that all workers read: CLOCK_MONOTONIC, which time.Now does not show.
func monotonic() int64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

func session(client *clientv3.Client, ttl int) *concurrency.Session {
	made, err := concurrency.NewSession(client, concurrency.WithTTL(ttl))
	check(err)
	return made
}

// Writes the holder; returns whether it was another one before.
func changes(file *os.File, holder [8]byte) bool {
	var last [8]byte
	length, _ := file.ReadAt(last[:], 0)
	_, err := file.WriteAt(holder[:], 0)
	check(err)
	return length == 8 && last != holder
}

// Each task has a session of its own: two tasks of one session would share their place in the queue.
func cycle(s *concurrency.Session, key string, file *os.File, number int, begin, end time.Time) (map[int]int, int) {
	histogram, handovers := map[int]int{}, 0
	var holder [8]byte
	binary.LittleEndian.PutUint64(holder[:], uint64(os.Getpid())<<20|uint64(number))
	for {
		asked := time.Now()
		mutex := concurrency.NewMutex(s, key)
		check(mutex.Lock(ctx))
		granted := time.Now()
		isHandover := file != nil && changes(file, holder)
		check(mutex.Unlock(ctx))
		done := time.Now()
		if !done.Before(end) {
			return histogram, handovers
		}
		if !done.Before(begin) {
			took := done.Sub(asked)
			if isHandover {
				handovers++
			}
			if file != nil {
				took = granted.Sub(asked)
			}
			histogram[int(math.Log(math.Max(float64(took), 1))/width)]++
		}
	}
}

func cycles(client *clientv3.Client, order string, count int, key string, ttl int) {
	sessions := make([]*concurrency.Session, count)
	for number := range sessions {
		sessions[number] = session(client, ttl)
	}
	first := concurrency.NewMutex(sessions[0], fmt.Sprintf("%s:first:%d", key, os.Getpid()))
	check(first.Lock(ctx))
	check(first.Unlock(ctx))
	fmt.Println("ready")
	line, err := stdin.ReadString('\n')
	check(err)
	words := strings.Fields(line)
	warm, _ := strconv.Atoi(words[1])
	measured, _ := strconv.Atoi(words[2])
	begin := time.Now().Add(time.Duration(warm) * time.Millisecond)
	end := begin.Add(time.Duration(measured) * time.Millisecond)
	var lock sync.Mutex
	var all sync.WaitGroup
	total, handovers := map[int]int{}, 0
	var file *os.File
	if order == "shared" {
		file, err = os.OpenFile(os.Getenv("DISTLOCK_PEERS_FILE"), os.O_RDWR|os.O_CREATE, 0o600)
		check(err)
	}
	for number, own := range sessions {
		name := key
		if order == "own" {
			name = fmt.Sprintf("%s:%d", key, number)
		}
		all.Add(1)
		go func(own *concurrency.Session, name string, number int) {
			defer all.Done()
			histogram, changed := cycle(own, name, file, number, begin, end)
			lock.Lock()
			defer lock.Unlock()
			handovers += changed
			for bucket, count := range histogram {
				total[bucket] += count
			}
		}(own, name, number)
	}
	time.Sleep(time.Until(begin))
	before := cpu()
	time.Sleep(time.Until(end))
	fmt.Printf("cpu_us %d\nrss_kb %s\n", cpu()-before, rss())
	all.Wait()
	fmt.Printf("handovers %d\nhistogram", handovers)
	for bucket, count := range total {
		fmt.Printf(" %d:%d", bucket, count)
	}
	fmt.Println("\ndone")
}

func keep(client *clientv3.Client, count int, key string, ttl int) {
	one := session(client, ttl)
	for number := 0; number < count; number++ {
		check(concurrency.NewMutex(one, fmt.Sprintf("%s:%d:", key, number)).Lock(ctx))
	}
	fmt.Println("ready")
	for {
		line, err := stdin.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "look") {
			return
		}
		fmt.Printf("cpu_us %d\nrss_kb %s\ndone\n", cpu(), rss())
	}
}

func main() {
	order, key, servers := os.Args[2], os.Args[4], strings.Split(os.Args[6], ",")
	count, _ := strconv.Atoi(os.Args[3])
	milliseconds, _ := strconv.Atoi(os.Args[5])
	ttl := milliseconds / 1000
	client, err := clientv3.New(clientv3.Config{Endpoints: servers, DialTimeout: 5 * time.Second})
	check(err)
	switch order {
	case "own", "shared":
		cycles(client, order, count, key, ttl)
	case "keep":
		keep(client, count, key, ttl)
	case "hold", "wait":
		mutex := concurrency.NewMutex(session(client, ttl), key)
		if order == "wait" {
			fmt.Println("ready")
		}
		check(mutex.Lock(ctx))
		fmt.Printf("held %d\n", monotonic())
		if order == "hold" {
			select {}
		}
	}
}
