#include "transport.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "runtime.h"

namespace testdev {
namespace {

using Clock = std::chrono::steady_clock;

enum Kind : uint32_t { kReady = 1, kData = 2, kMismatch = 3 };

struct Header {
  uint32_t kind;
  uint32_t unused;
  uint64_t bytes;
};

struct Leaving {
  std::string own;   // a header
  const char* data;  // or somebody's memory
  size_t bytes;
  size_t at;
};

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("testccl: " + what); }

int checked(int result, const char* what) {
  if (result < 0) fail(std::string(what) + ": " + std::strerror(errno));
  return result;
}

void prepare(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

struct Transport::Link {
  int peer = -1;
  int fd = -1;
  bool closed = false;
  std::deque<uint64_t> ready;             // sizes of receives that the peer has begun
  std::deque<std::vector<char>> early;    // data that came before its receive
  std::deque<Leaving> leaving;
  std::deque<Piece> sends, receives;      // of the exchange, in order
  Header header{};
  size_t have = 0;                        // bytes of the header
  char* into = nullptr;
  size_t left = 0;
  bool is_early = false;

  bool busy() const { return !sends.empty() || !receives.empty() || !leaving.empty(); }
};

Transport::Transport(int rank, int size) : rank_(rank) {
  for (int peer = 0; peer < size; ++peer) {
    links_.push_back(std::make_unique<Link>());
    links_.back()->peer = peer;
  }
  checked(pipe2(wake_, O_CLOEXEC | O_NONBLOCK), "pipe");
}

Transport::~Transport() {
  for (auto& link : links_) {
    if (link->fd >= 0) close(link->fd);
  }
  if (listener_ >= 0) close(listener_);
  close(wake_[0]);
  close(wake_[1]);
}

void Transport::abort() {
  aborted_ = true;
  const char byte = 0;
  [[maybe_unused]] auto written = write(wake_[1], &byte, 1);
}

void Transport::wait_for(int fd, short events, Clock::time_point deadline) {
  pollfd asked[2] = {{fd, events, 0}, {wake_[0], POLLIN, 0}};
  while (true) {
    if (aborted_) fail("the communicator was aborted");
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) fail("timed out while ranks were connecting");
    const int found = poll(asked, 2, static_cast<int>(std::min<int64_t>(left, 1 << 30)));
    if (found < 0 && errno != EINTR) fail("poll failed");
    if (asked[0].revents != 0) return;
  }
}

void Transport::connect(const Meeting& meeting, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listener_ = checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  checked(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), "bind");
  checked(listen(listener_, 64), "listen");
  socklen_t length = sizeof address;
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
  meeting.tell(std::to_string(rank_), std::to_string(ntohs(address.sin_port)));
  for (int peer = 0; peer < rank_; ++peer) {
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(meeting.ask(std::to_string(peer)))));
    const int fd = checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    links_[peer]->fd = fd;
    checked(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), "connect");
    const int32_t own = rank_;
    if (write(fd, &own, sizeof own) != sizeof own) fail("a rank went away while ranks were connecting");
    prepare(fd);
  }
  for (size_t n = rank_ + 1; n < links_.size(); ++n) {
    wait_for(listener_, POLLIN, deadline);
    const int fd = checked(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), "accept");
    int32_t peer = -1;
    if (recv(fd, &peer, sizeof peer, MSG_WAITALL) != sizeof peer || peer <= rank_ ||
        peer >= static_cast<int>(links_.size())) {
      close(fd);
      fail("a rank went away while ranks were connecting");
    }
    links_[peer]->fd = fd;
    prepare(fd);
  }
  close(listener_);
  listener_ = -1;
}

void Transport::announce(Link& link, uint32_t kind, uint64_t bytes) {
  const Header header{kind, 0, bytes};
  link.leaving.push_back({std::string(reinterpret_cast<const char*>(&header), sizeof header), nullptr, sizeof header, 0});
}

void Transport::begin_sends(Link& link) {
  const bool waits = is_on(Switch::rendezvous);
  while (!link.sends.empty() && (!waits || !link.ready.empty())) {
    const Piece piece = link.sends.front();
    if (waits) {
      if (link.ready.front() != piece.bytes) {
        if (is_on(Switch::unsized)) return;  // for ever
        announce(link, kMismatch, piece.bytes);
        write_to(link);
        fail("rank " + std::to_string(link.peer) + " receives " + std::to_string(link.ready.front()) +
             " bytes where " + std::to_string(piece.bytes) + " are sent");
      }
      link.ready.pop_front();
    }
    link.sends.pop_front();
    announce(link, kData, piece.bytes);
    if (piece.bytes > 0) link.leaving.push_back({{}, piece.data, piece.bytes, 0});
  }
}

void Transport::write_to(Link& link) {
  while (!link.leaving.empty()) {
    Leaving& next = link.leaving.front();
    const char* from = next.data != nullptr ? next.data : next.own.data();
    const ssize_t sent = ::send(link.fd, from + next.at, next.bytes - next.at, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      link.closed = true;
      return;
    }
    next.at += static_cast<size_t>(sent);
    if (next.at < next.bytes) return;
    link.leaving.pop_front();
  }
}

void Transport::read_from(Link& link) {
  while (true) {
    char* into = link.left > 0 ? link.into : reinterpret_cast<char*>(&link.header) + link.have;
    const size_t wanted = link.left > 0 ? link.left : sizeof link.header - link.have;
    const ssize_t got = recv(link.fd, into, wanted, 0);
    if (got == 0) {
      link.closed = true;
      return;
    }
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) link.closed = true;
      return;
    }
    if (link.left > 0) {
      link.into += got;
      link.left -= static_cast<size_t>(got);
      if (link.left > 0) continue;
    } else {
      link.have += static_cast<size_t>(got);
      if (link.have < sizeof link.header) continue;
      link.have = 0;
      const uint64_t bytes = link.header.bytes;
      if (link.header.kind == kReady) {
        link.ready.push_back(bytes);
        continue;
      }
      if (link.receives.empty() || !link.early.empty()) {
        link.early.emplace_back(bytes);
        link.into = link.early.back().data();
        link.is_early = true;
      } else {
        if (link.header.kind == kMismatch || link.receives.front().bytes != bytes) {
          if (is_on(Switch::unsized)) {
            link.closed = true;  // nothing is read any more
            return;
          }
          fail("rank " + std::to_string(link.peer) + " sends " + std::to_string(bytes) + " bytes where " +
               std::to_string(link.receives.front().bytes) + " are received");
        }
        link.into = link.receives.front().data;
        link.is_early = false;
      }
      link.left = bytes;
      if (bytes > 0) continue;
    }
    if (link.is_early) {
      deliver_early(link);
    } else {
      link.receives.pop_front();
    }
  }
}

void Transport::deliver_early(Link& link) {
  while (!link.receives.empty() && !link.early.empty()) {
    if (link.is_early && link.left > 0 && link.early.size() == 1) return;  // a part of it is still to come
    const std::vector<char>& came = link.early.front();
    const Piece& due = link.receives.front();
    if (came.size() != due.bytes) {
      fail("rank " + std::to_string(link.peer) + " sends " + std::to_string(came.size()) + " bytes where " +
           std::to_string(due.bytes) + " are received");
    }
    if (due.bytes > 0) std::memcpy(due.data, came.data(), due.bytes);
    link.early.pop_front();
    link.receives.pop_front();
  }
}

void Transport::exchange(const std::vector<Piece>& pieces, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::deque<Piece> to_itself;
  for (const Piece& piece : pieces) {
    Link& link = *links_.at(piece.peer);
    if (piece.peer == rank_) {
      if (piece.sends) to_itself.push_back(piece);
    } else {
      (piece.sends ? link.sends : link.receives).push_back(piece);
    }
  }
  for (const Piece& piece : pieces) {
    if (piece.peer == rank_ && !piece.sends) {
      if (to_itself.empty() || to_itself.front().bytes != piece.bytes) fail("a rank receives from itself what it does not send");
      if (piece.bytes > 0) std::memmove(piece.data, to_itself.front().data, piece.bytes);
      to_itself.pop_front();
    }
  }
  for (auto& link : links_) {
    if (is_on(Switch::rendezvous)) {
      for (const Piece& piece : link->receives) announce(*link, kReady, piece.bytes);
    }
    deliver_early(*link);
  }
  while (true) {
    if (aborted_) fail("the communicator was aborted");
    std::vector<pollfd> asked = {{wake_[0], POLLIN, 0}};
    std::vector<Link*> owners = {nullptr};
    bool busy = false;
    for (auto& link : links_) {
      if (link->peer == rank_) continue;
      if (!link->closed) begin_sends(*link);
      if (!link->busy()) continue;
      busy = true;
      if (link->closed) {
        if (is_on(Switch::silent) || is_on(Switch::unsized)) continue;
        fail("the connection to rank " + std::to_string(link->peer) + " was closed by it");
      }
      const short events = POLLIN | (link->leaving.empty() ? 0 : POLLOUT);
      asked.push_back({link->fd, events, 0});
      owners.push_back(link.get());
    }
    if (!busy) return;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) fail("an operation timed out after " + std::to_string(limit.count()) + " ms");
    if (poll(asked.data(), asked.size(), static_cast<int>(std::min<int64_t>(left, 1 << 30))) < 0 && errno != EINTR) {
      fail("poll failed");
    }
    for (size_t n = 1; n < asked.size(); ++n) {
      if ((asked[n].revents & POLLOUT) != 0) write_to(*owners[n]);
      if ((asked[n].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(*owners[n]);
    }
  }
}

}  // namespace testdev
